"""`fairbox check-template`: what a user is told of a chat template, and the exit code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rollout.cli import main

FOLDER = Path(__file__).parents[1] / "data" / "templates"
CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + (CONTENT) + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def write(folder: Path, content: str) -> str:
    path = folder / "mine.jinja"
    path.write_text(CHATML.replace("CONTENT", content))
    return str(path)


def test_safe_template(model_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check-template", "smollm2"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("smollm2: append-only, tokens are exact\n")
    assert "a turn ends with      <|im_end|>" in text
    assert "none: described in the system message (Hermes)" in text


def test_template_that_drops_thinking_shows_where_and_what_to_do(
    model_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path, "m.content.split('</think>')[-1]")
    assert main(["check-template", path]) == 1
    text = capsys.readouterr().out
    assert "NOT append-only" in text
    assert "turn 2 (role assistant) is rendered otherwise than it was sampled" in text
    assert "was      '<think>\\nWhy?\\n</think>" in text
    assert "chat.rewrites=keep" in text


def test_json_has_every_fact(model_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, "(messages | length) ~ m.content if m.role == 'system' else m.content")
    assert main(["check-template", path, "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert (report["safe"], report["usable"], report["severity"]) == (False, True, "prompt")
    (difference,) = report["differences"]
    assert (difference["kind"], difference["turn"], difference["seen_with_turns"]) == ("prompt", 0, 1)
    assert difference["expected"].startswith("<|im_start|>system\n2Be brief.")
    assert difference["found"].startswith("<|im_start|>system\n4Be brief.")


def test_real_template_over_another_tokenizer(model_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check-template", str(FOLDER / "Qwen-Qwen3-0.6B.jinja"), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["tool_format"], report["place_for_tools"]) == ("hermes", True)
    assert report["drops_thinking_of_earlier_questions"] is True


def test_options_reach_the_template(model_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # Without thinking, Qwen 3 writes an empty thought before a turn, and drops it from earlier ones.
    arguments = ["check-template", str(FOLDER / "Qwen-Qwen3-0.6B.jinja"), 'chat.options={"enable_thinking": false}']
    assert main(arguments) == 1
    assert "<think>\\n\\n</think>" in capsys.readouterr().out


def test_template_that_can_not_be_used(model_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, "m.content if m.role != 'tool' else ''")
    assert main(["check-template", path]) == 1
    assert "the chat template leaves out what tools answer" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argument", "problem"),
    [
        ("chat.rewrites=maybe", "chat.rewrites is 'maybe', must be one of: refuse, keep"),
        ("chat.options=[1]", "chat.options is '[1]', must be a JSON object"),
        ("chat.options={", "chat.options is '{', must be a JSON object"),
        ("chat.template=no.jinja", "chat.template is 'no.jinja', which is no file"),
        ("tool_format=hermse", "tool_format is 'hermse', must be one of auto, hermes"),
        ("no.jinja", "chat.template is 'no.jinja', which is no file"),
    ],
)
def test_bad_settings_are_named(argument: str, problem: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check-template", argument]) == 2
    assert problem in capsys.readouterr().err
