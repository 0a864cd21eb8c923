"""The practice kit: problems, tokenizer, and what is written; whether its policy learns is tested in training."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from examples.practice import Problem, WarmUp, draw, held_out, write_practice
from examples.practice.__main__ import main
from fairbox.errors import FairboxError
from rollout.data.rows import read_rows
from rollout.envs import EnvironmentSetup, Gsm8kConfig, Gsm8kEnvironment

torch = pytest.importorskip("torch", reason="torch is not installed (extra `engine`)")

from examples.practice.warm_up import Writer, call_text  # noqa: E402
from rollout.engines.local.decoder import load_model  # noqa: E402 - needs torch
from rollout.engines.model_store import find_model  # noqa: E402
from rollout.tokens import ChatTemplate, HubTokenizer  # noqa: E402
from rollout.tokens.probe import Severity  # noqa: E402
from rollout.tools.code.code_interpreter import CodeInterpreter  # noqa: E402
from rollout.tools.formats.choice import find_format  # noqa: E402

TOOLS = [CodeInterpreter.default_schema.openai()]


@pytest.fixture(scope="module")
def practice(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Written with a warm-up of three steps, which teaches nothing."""
    folder = tmp_path_factory.mktemp("kit") / "practice"
    assert main([f"out={folder}", "warm_up.steps=3", "warm_up.batch=8"]) == 0
    return folder


@pytest.fixture(scope="module")
def chat(practice: Path) -> ChatTemplate:
    return ChatTemplate(HubTokenizer(practice / "model"))


def test_a_problem_is_what_its_program_prints() -> None:
    assert Problem(48, 92).question == "48 * 92 % 97 = ?"
    assert Problem(48, 92).answer == str(eval("48 * 92 % 97")) == "51"
    assert Problem(48, 92).code == "print(48 * 92 % 97)"


def test_problems_are_of_one_part_and_seldom_guessed() -> None:
    trained, held = draw(3000, random.Random(1)), draw(300, random.Random(1), held=True)
    assert not any(held_out(problem) for problem in trained)
    assert all(held_out(problem) for problem in held)
    assert draw(50, random.Random(1)) == trained[:50]
    answers = [problem.answer for problem in trained]
    assert max(answers.count(answer) for answer in set(answers)) < 0.02 * len(answers)


def test_the_folder_is_a_model_and_rows_that_training_takes(practice: Path) -> None:
    assert sorted(path.name for path in practice.iterdir()) == ["model", "test.jsonl", "train.jsonl"]
    model = load_model(find_model(str(practice / "model")))
    assert 1_000_000 < sum(value.numel() for value in model.parameters()) < 3_000_000
    for name, count in (("train.jsonl", 2000), ("test.jsonl", 200)):
        rows = read_rows(practice / name)
        assert len(rows) == count
        task = Gsm8kEnvironment(Gsm8kConfig(prompt="data"), EnvironmentSetup(data=practice / name)).tasks()[0]
        assert task.messages == ({"role": "user", "content": rows[0].question},)
        assert task.ground_truth == rows[0].ground_truth


def test_the_chat_template_is_exact_and_writes_calls_that_are_read_back(chat: ChatTemplate) -> None:
    assert chat.findings.severity is Severity.NONE
    problem = Problem(12, 45)
    (call,) = find_format("auto", chat).parse(call_text(problem, "code_interpreter"), TOOLS)
    assert call.arguments == {"code": problem.code}  # type: ignore[union-attr]


def test_digits_are_ids_of_their_own_and_every_text_comes_back(chat: ChatTemplate) -> None:
    for digits in ("7", "42", "1234567890"):
        assert len(chat.encode(digits)) == len(digits)
    for text in ("é ☃ \n\t", "def f(x):\n    return x", '{"a": [1, 2]}'):
        assert chat.decode(chat.encode(text)) == text


def test_calls_have_their_share_in_batches_of_any_size(chat: ChatTemplate) -> None:
    writer = Writer(chat, TOOLS, 0.1)
    for size in (8, 9, 15):
        calls = guesses = 0.0
        for example in writer.batch(size, random.Random(0)):
            first = next(weight for weight in example.weights if weight)
            if "<tool_call>" in chat.decode(example.ids):
                calls += first
            else:
                guesses += first
        assert calls / (calls + guesses) == pytest.approx(0.1), size
        assert calls + guesses == pytest.approx(size)


def test_the_same_seed_gives_the_same_folder_and_another_one_another(practice: Path, tmp_path: Path) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as the command does: sums in one order
    try:
        for seed in (0, 1):
            write_practice(tmp_path / str(seed), WarmUp(steps=3, batch=8), seed=seed)
    finally:
        torch.set_num_threads(threads)
    for name in ("model/tokenizer.json", "model/model.safetensors", "train.jsonl", "test.jsonl"):
        assert (tmp_path / "0" / name).read_bytes() == (practice / name).read_bytes()
    assert (tmp_path / "1" / "model/model.safetensors").read_bytes() != (
        practice / "model/model.safetensors"
    ).read_bytes()
    assert (tmp_path / "1" / "train.jsonl").read_bytes() != (practice / "train.jsonl").read_bytes()


def test_a_folder_that_is_there_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("x")
    with pytest.raises(FairboxError, match="is there already; name a new folder"):
        write_practice(tmp_path, WarmUp(steps=1, batch=8))
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


@pytest.mark.parametrize(
    ("word", "problem"),
    [
        ("warm_up.steps=0", "warm_up.steps is 0, must be at least 1"),
        ("warm_up.batch=7", "warm_up.batch is 7, must be at least 8"),
        ("warm_up.call_share=1", "warm_up.call_share is 1.0, must be above 0 and below 1"),
        ("warm_up.lr=0", "warm_up.lr is 0.0, must be positive"),
        ("threads=0", "threads is 0, must be at least 1"),
        (f"seed={2**64}", f"seed is {2**64}, must be from {-(2**63)} to {2**64 - 1}"),
        ("step=3", "step (step) is not a setting"),
    ],
)
def test_bad_settings_are_named(word: str, problem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([f"out={tmp_path / 'x'}", word]) == 2
    assert problem in capsys.readouterr().err
    assert not (tmp_path / "x").exists()


def test_rows_are_verls(practice: Path) -> None:
    row = json.loads((practice / "test.jsonl").read_text().splitlines()[0])
    assert set(row) == {"data_source", "prompt", "ability", "reward_model"}
