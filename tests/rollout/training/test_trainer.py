"""Whole runs on a small model: what is written, what a resume goes on from, and how a run ends that can't go on."""

from __future__ import annotations

import asyncio
import resource
import shutil
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fairbox.errors import ConfigError, FairboxError
from rollout.cli import main
from rollout.config import EngineSettings
from rollout.dump import read_dump, trainer_file
from rollout.loop import Limits
from tests.rollout.training.vowels import VowelsConfig

torch = pytest.importorskip("torch", reason="torch is not installed (extra `engine`)")

from rollout.config import recorded_settings  # noqa: E402
from rollout.engines.local.decoder import load_model  # noqa: E402 - needs torch
from rollout.training import (  # noqa: E402
    AdvantageSettings,
    CorrectionSettings,
    ObjectiveSettings,
    PolicyLossSettings,
    PolicySettings,
)
from rollout.training.config import TrainConfig, changed_settings  # noqa: E402
from rollout.training.learner.checkpoints import CheckpointError, CheckpointStore  # noqa: E402
from rollout.training.learner.learner import Diverged, Learner  # noqa: E402
from rollout.training.learner.update import UpdateSettings  # noqa: E402
from rollout.training.run.run import TrainingRun  # noqa: E402
from tests.rollout.training.runs import finished, lines, vowels_run  # noqa: E402

CONFIG = TrainConfig(
    env="vowels",
    prompts_per_step=2,
    samples_per_prompt=3,
    concurrency=1,
    steps=4,
    save_every=1,
    eval_every=2,
    limits=Limits(max_turn_tokens=6),
    engine=EngineSettings(max_batch=1, max_model_tokens=128),
    update=UpdateSettings(lr=1e-2),
)


@pytest.fixture(autouse=True)
def _one_thread() -> Any:
    """Sums in one order: what is computed twice is the same bit for bit."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def run_of(model_dir: Path, out: Path, **changes: Any) -> TrainingRun:
    return vowels_run(CONFIG, model_dir, out, **changes)


def trained(run: TrainingRun, stop_at: int | None = None) -> bool:
    """Runs it; with `stop_at` the stop comes while the rollouts of the step after it run."""

    async def go() -> bool:
        stop = asyncio.Event()
        work = asyncio.ensure_future(finished(run, stop))
        while stop_at is not None and not work.done() and len(lines(run.out)) <= stop_at:
            await asyncio.sleep(0.01)
        if stop_at is not None:
            stop.set()
        return await work

    return asyncio.run(go())


def untimed(out: Path) -> list[dict[str, Any]]:
    timed = ("time/", "async/")
    return [{name: value for name, value in line.items() if not name.startswith(timed)} for line in lines(out)]


def state(out: Path, step: int) -> dict[str, Any]:
    found = CheckpointStore(out / "checkpoints", keep=9).latest()
    assert found is not None
    assert found.step == step
    return found.state


def test_a_trainers_file_that_cannot_be_written_costs_no_step(
    tiny_dir: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = trainer_file(tmp_path, "1").parent
    folder.write_text("no folder")
    assert trained(run_of(tiny_dir, tmp_path, steps=1))
    assert [line["step"] for line in lines(tmp_path)] == [0, 1]
    assert f"{folder / '1.ndjson'}: can't be written" in caplog.text


def test_a_run_that_was_interrupted_goes_on_as_if_it_had_not_been(tiny_dir: Path, tmp_path: Path) -> None:
    assert trained(run_of(tiny_dir, tmp_path / "whole"))
    assert not trained(run_of(tiny_dir, tmp_path / "parts"), stop_at=2)
    stopped_after = state(tmp_path / "parts", lines(tmp_path / "parts")[-1]["step"])["steps_done"]
    assert 2 <= stopped_after < 4
    with pytest.raises(ConfigError, match="holds a run; set resume to go on"):
        trained(run_of(tiny_dir, tmp_path / "parts"))
    # What a crash leaves: half a checkpoint, half a line, a dump of a step that is played again.
    (tmp_path / "parts" / "checkpoints" / ".step-000004.part").mkdir()
    with (tmp_path / "parts" / "metrics.jsonl").open("a") as file:
        file.write('{"step": 9}\n{"step"')
    (tmp_path / "parts" / "rollouts" / "4.jsonl").write_text("{}\n")
    trainer_file(tmp_path / "parts", "9").write_text("{}\n")
    assert trained(run_of(tiny_dir, tmp_path / "parts", resume=True))
    assert untimed(tmp_path / "parts") == untimed(tmp_path / "whole")
    files = trainer_file(tmp_path / "parts", "1").parent.iterdir()
    assert sorted(file.name for file in files) == [f"{step}.ndjson" for step in range(1, 5)]
    whole, parts = state(tmp_path / "whole", 4), state(tmp_path / "parts", 4)
    assert all(torch.equal(value, parts["parameters"][name]) for name, value in whole["parameters"].items())
    moved = [value["exp_avg"] for value in whole["optimizer"]["state"].values()]
    assert any(value.any() for value in moved)
    again = [value["exp_avg"] for value in parts["optimizer"]["state"].values()]
    assert all(torch.equal(one, other) for one, other in zip(moved, again, strict=True))
    assert sorted(path.name for path in (tmp_path / "parts" / "checkpoints").iterdir()) == [
        "step-000003",
        "step-000004",
    ]


def test_every_step_is_sampled_by_its_own_weights_and_says_so(tiny_dir: Path, tmp_path: Path) -> None:
    assert trained(run_of(tiny_dir, tmp_path))
    found = lines(tmp_path)
    assert [line["step"] for line in found] == [0, 1, 2, 3, 4]
    assert ["eval/reward" in line for line in found] == [True, False, True, False, True]
    for step in range(1, 5):
        records = list(read_dump(tmp_path / "rollouts" / f"{step}.jsonl"))
        assert len(records) == 6
        versions = {part["weight_version"] for record in records for part in record["segments"][1:]}
        assert versions == {f"step-{step - 1}"}
        line = found[step]
        assert line["logprob_difference_max"] < 1e-4
        assert line["reward"] == pytest.approx(sum(record["score"] for record in records) / 6)
        assert line["grad_norm"] > 0
    assert len(list(read_dump(tmp_path / "evaluations" / "4.jsonl"))) == 1
    exported = load_model(tmp_path / "model").state_dict()
    for name, value in state(tmp_path, 4)["parameters"].items():
        assert torch.equal(exported[name], value)
    assert (tmp_path / "model" / "tokenizer.json").is_file()


def test_settings_that_changed_are_named(tiny_dir: Path, tmp_path: Path) -> None:
    run = run_of(tiny_dir, tmp_path, steps=1)
    assert trained(run)
    problem = "samples_per_prompt is 2, was 3; update.lr is 0.5, was 0.01"
    with pytest.raises(ConfigError, match=problem):
        trained(run_of(tiny_dir, tmp_path, resume=True, samples_per_prompt=2, update=UpdateSettings(lr=0.5)))
    assert len(lines(tmp_path)) == 2
    with pytest.raises(ConfigError, match=r"env_config.wanted is 'xyz', was 'aeiou'"):
        trained(replace(run, config=replace(run.config, resume=True), env_settings=VowelsConfig("xyz")))
    constant, falling = {"steps": 5, "update.schedule": "constant"}, {"steps": 5, "update.schedule": "cosine"}
    assert changed_settings(constant, constant | {"steps": 9, "keep": 3}) == []
    assert changed_settings(falling, falling | {"steps": 9}) == ["steps is 9, was 5"]
    # Of a version that did not have the setting yet, and did what its default does.
    new = {"update.lr": TrainConfig().update.lr}
    assert changed_settings(constant, constant | new) == []
    assert changed_settings(constant, constant | {"update.lr": 0.5}) == [f"update.lr is 0.5, was {new['update.lr']}"]
    assert changed_settings(constant | new, constant) == [f"update.lr is 'not a setting', was {new['update.lr']}"]


def test_a_run_goes_on_where_its_servers_are_elsewhere() -> None:
    before = replace(CONFIG, engine=EngineSettings(kind="sglang", urls=["http://a"]))
    engine = EngineSettings(kind="sglang", urls=["http://b"], router_url="http://r", api_key_file="key")
    assert changed_settings(recorded_settings(before), recorded_settings(replace(before, engine=engine))) == []


def test_a_loss_that_is_not_finite_ends_the_run_with_what_was_learned(
    tiny_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Learner.step

    def poisoned(self: Learner, batch: Any) -> dict[str, float]:
        if self.steps_done == 1:
            batch = replace(batch, rewards=batch.rewards * float("nan"))
        return real(self, batch)

    monkeypatch.setattr(Learner, "step", poisoned)
    with pytest.raises(Diverged, match=r"the loss of step 2 is nan; the weights before that are in .*diverged-000001"):
        trained(run_of(tiny_dir, tmp_path))
    assert state(tmp_path, 1)["steps_done"] == 1
    assert (tmp_path / "checkpoints" / "diverged-000001" / "state.pt").stat().st_size > 1000


def test_more_problems_than_there_are_is_an_error(tiny_dir: Path, tmp_path: Path) -> None:
    with pytest.raises(FairboxError, match="prompts_per_step is 5, must be at most 4"):
        trained(run_of(tiny_dir, tmp_path, prompts_per_step=5))


def test_a_full_disk_leaves_the_checkpoint_before(tmp_path: Path) -> None:
    """A file may not grow beyond a limit, which the kernel enforces as it does a full disk."""
    store = CheckpointStore(tmp_path, keep=2)
    store.save(1, {"weights": torch.arange(10)}, {"lr": 1})
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(CheckpointError, match=r"step-000002: the checkpoint can't be written: "):
            store.save(2, {"weights": torch.zeros(1_000_000)}, {"lr": 1})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)
    assert [path.name for path in tmp_path.iterdir()] == ["step-000001"]
    store.save(2, {"weights": torch.zeros(1_000_000)}, {"lr": 1})
    found = store.latest()
    assert found is not None
    assert (found.step, found.config) == (2, {"lr": 1})


@pytest.mark.parametrize("damage", ["cut", "changed", "no checksum"])
def test_a_damaged_checkpoint_is_passed_over(tmp_path: Path, damage: str) -> None:
    store = CheckpointStore(tmp_path, keep=3)
    for step in (1, 2):
        store.save(step, {"step": step, "weights": torch.arange(100)}, {})
    newest = tmp_path / "step-000002" / "state.pt"
    match damage:
        case "cut":
            newest.write_bytes(newest.read_bytes()[:-10])
        case "changed":
            content = bytearray(newest.read_bytes())
            content[len(content) // 2] ^= 1
            newest.write_bytes(content)
        case _:
            (newest.parent / "checksum.json").unlink()
    found = store.latest()
    assert found is not None
    assert found.step == found.state["step"] == 1
    shutil.rmtree(tmp_path / "step-000001")
    assert store.latest() is None


def test_what_is_written_after_a_damaged_checkpoint_is_the_newest(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep=1)
    store.save(1, {"step": 1}, {})
    CheckpointStore(tmp_path, keep=2).save(9, {"step": 9}, {})
    (tmp_path / "step-000009" / "checksum.json").rename(tmp_path / "away")  # it can't be read, for a while
    assert [found.step for found in [store.latest()] if found] == [1]
    store.save(2, {"step": 2}, {})
    assert [found.step for found in [store.latest()] if found] == [2]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["away", "step-000002"]


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"samples_per_prompt": 1}, "samples_per_prompt is 1, must be at least 2 with advantage.estimator=grpo"),
        ({"ray": True}, "ray is set, which training does not support"),
        ({"policy": PolicySettings(device="abacus")}, "policy.device is 'abacus', must be cpu, cuda, or"),
        ({"policy": PolicySettings(lora_targets=[])}, "policy.lora_targets is empty"),
        (
            {"advantage": AdvantageSettings("ppo")},
            "estimator is 'ppo', must be one of: grpo, rloo, reinforce[+]{2}, gae",
        ),
        ({"loss": ObjectiveSettings(PolicyLossSettings("trpo"))}, "loss.policy.kind is 'trpo', must be one of: ppo"),
        (
            {"loss": ObjectiveSettings(anchor="rollout", correction=CorrectionSettings("token"))},
            "with loss.anchor=rollout the ratio corrects already",
        ),
    ],
)
def test_bad_settings_are_named(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        replace(CONFIG, **changes).validate()


def test_the_command_names_a_bad_setting_before_anything_is_loaded(capsys: pytest.CaptureFixture[str]) -> None:
    for words, problem in (
        (["steps=0"], "steps is 0, must be at least 1"),
        (["advantage.estimater=rloo"], "did you mean advantage.estimator?"),
        (["env_config.prompt=none"], "env_config.prompt is 'none', must be one of: code, plain"),
        (["engine.kind=vllm", "engine.urls=[http://a]"], "engine.kind is 'vllm', must be one of: transformers, sglang"),
    ):
        assert main(["train", *words]) == 2
        assert problem in capsys.readouterr().err
