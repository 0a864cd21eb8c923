"""Asynchronous runs in which something fails or takes long: what is lost, what is played again, what ends the run."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from executor_service import Cause, ExecutorUnavailable, Overloaded, RunLost
from fairbox.errors import FairboxError
from fairbox.net.ports import free_port
from rollout.envs.base import EnvironmentSetup
from rollout.loop import AgentLoop, Task, TrajectoryResult
from rollout.rewards import NotScored, Reward
from rollout.stack import LocalStack
from tests.rollout.training.vowels import Hampered, Vowels, VowelsConfig

torch = pytest.importorskip("torch", reason="torch is not installed (extra `engine`)")

from rollout.training.learner.checkpoints import CheckpointStore  # noqa: E402 - needs torch
from rollout.training.learner.learner import Learner  # noqa: E402
from tests.rollout.training.runs import finished, lines  # noqa: E402
from tests.rollout.training.test_async import each_problem_once_a_pass, played, run_of  # noqa: E402


class Sandboxed(Vowels):
    """Vowels that are counted by a program in the executor."""

    def __init__(self) -> None:
        super().__init__(VowelsConfig(), EnvironmentSetup())

    async def score(self, task: Task, result: TrajectoryResult) -> Reward:
        assert self.services.executor is not None
        code = f"print(sum(letter in 'aeiou' for letter in {result.final_text.lower()!r}))"
        try:
            ran = await self.services.executor.execute(code)
        except (ExecutorUnavailable, Overloaded, RunLost) as error:
            raise NotScored(Cause.INFRA, str(error)) from None
        return Reward(float(ran.stdout.data))


def hampered(model_dir: Path, out: Path, before: Callable[[Task], Any], **changes: Any) -> Any:
    return replace(run_of(model_dir, out, **changes), environment=Hampered(before), held_out=None)


async def test_a_problem_that_the_service_always_fails_costs_its_own_trajectories(
    tiny_dir: Path, tmp_path: Path
) -> None:
    async def before(task: Task) -> None:
        if task.uid == "v1":
            raise NotScored(Cause.INFRA, "its grader is away")

    assert await finished(hampered(tiny_dir, tmp_path, before, infra_retries=0))
    found = Counter(where for step in played(tmp_path, 6) for where in step)
    assert found["vowels:1"] == 0
    assert min(found[f"vowels:{n}"] for n in (0, 2, 3)) >= 9
    assert all(line["masked"] == 0 and line["trained_rows"] == 6 for line in lines(tmp_path))
    assert sum(line["async/lost"] for line in lines(tmp_path)) >= 3


async def test_a_group_that_takes_too_long_is_trained_on_late(tiny_dir: Path, tmp_path: Path) -> None:
    stuck: list[str] = []

    async def before(task: Task) -> None:
        if task.uid == "v1" and len(stuck) < 3:
            stuck.append(task.uid)
            while len(lines(tmp_path)) < 4:
                await asyncio.sleep(0.01)

    assert await finished(hampered(tiny_dir, tmp_path, before, concurrency=12))
    each_problem_once_a_pass(tmp_path, 6)
    found = lines(tmp_path)
    assert sum(line["async/late"] for line in found) >= 1
    assert max(line["async/staleness_max"] for line in found) >= 3
    assert max(line["importance"] for line in found) <= 2  # the cap of loss.correction


@pytest.mark.train
async def test_a_run_outlives_services_that_are_started_again(tiny_dir: Path, tmp_path: Path) -> None:
    run = run_of(tiny_dir, tmp_path, infra_retries=6)
    run = replace(run, environment=Sandboxed(), held_out=None)
    async with LocalStack() as stack, stack.kept():
        work = asyncio.ensure_future(finished(run, executor=stack.ports.executor, limiter=stack.ports.limiter))
        while len(lines(tmp_path)) < 2:
            assert not work.done()
            await asyncio.sleep(0.01)
        for service in ("executor_service", "limiter"):
            os.kill(stack.pid(service), signal.SIGKILL)
        assert await work
    each_problem_once_a_pass(tmp_path, 6)
    assert [line["step"] for line in lines(tmp_path)] == [*range(1, 7)]
    assert all(line["trained_rows"] > 0 for line in lines(tmp_path))


def failing(monkeypatch: pytest.MonkeyPatch, fails: Callable[[int], bool], played: list[int]) -> None:
    """Has the service fail those trajectories, by index; notes what was played."""
    play = AgentLoop.run

    async def run(self: AgentLoop, task: Task, *, index: int, **options: Any) -> TrajectoryResult:
        played.append(index)
        result = await play(self, task, index=index, **options)
        return replace(result, cause=Cause.INFRA, error="the executor is away") if fails(index) else result

    monkeypatch.setattr(AgentLoop, "run", run)


@pytest.mark.parametrize("max_staleness", [0, 1])
async def test_a_step_of_which_the_service_failed_much_is_played_again_and_not_trained_on(
    tiny_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, max_staleness: int
) -> None:
    found: list[int] = []
    failing(monkeypatch, lambda index: index % 3 == 0 and found.count(index) == 1 and index < 6, found)
    run = run_of(tiny_dir, tmp_path, steps=2, infra_retries=0, max_staleness=max_staleness)
    assert await finished(replace(run, held_out=None))
    assert all(line["masked"] == line["masked/infra"] == 0 for line in lines(tmp_path))
    assert sorted(index for index in found if index < 6) == sorted([*range(6)] * 2)
    assert sum(line["async/lost"] for line in lines(tmp_path)) == 2


async def test_a_service_that_goes_on_failing_a_part_ends_the_run(
    tiny_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing(monkeypatch, lambda index: index % 3 == 0, [])
    said = (
        r"failed 33% of the trajectories of step 1 \(max_masked_share=0.1\): the executor is away; this was the case 3"
    )
    with pytest.raises(FairboxError, match=said):
        await finished(replace(run_of(tiny_dir, tmp_path, infra_retries=0), held_out=None))


async def test_a_share_that_is_allowed_is_masked(
    tiny_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing(monkeypatch, lambda index: index % 3 == 0, [])
    run = run_of(tiny_dir, tmp_path, steps=2, infra_retries=0, max_masked_share=0.5)
    assert await finished(replace(run, held_out=None))
    found = lines(tmp_path)
    assert [(line["masked"], line["trained_rows"]) for line in found] == [(2, 4)] * 2
    assert [line["masked/infra_others"] for line in found] == [1 / 3] * 2
    assert [line["masked/infra_callers"] for line in found] == [0.0] * 2


async def test_services_that_stay_away_end_the_run_with_what_was_learned(tiny_dir: Path, tmp_path: Path) -> None:
    async def before(task: Task) -> None:
        if lines(tmp_path)[1:]:
            raise NotScored(Cause.INFRA, "the grader is away")

    run = hampered(tiny_dir, tmp_path, before, infra_retries=0, save_every=100)
    with pytest.raises(FairboxError, match="every trajectory of the last 6 groups failed by the service: scoring: the"):
        await finished(run)
    found = CheckpointStore(tmp_path / "checkpoints", keep=9).latest()
    assert found is not None
    assert found.step == lines(tmp_path)[-1]["step"] >= 2


async def test_a_defect_in_one_group_ends_the_run_also_where_others_wait_for_a_step(
    tiny_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    play, step = AgentLoop.run, Learner.step
    when: list[int] = []

    async def broken(self: AgentLoop, task: Task, *, index: int, **options: Any) -> TrajectoryResult:
        if lines(tmp_path) and not when:
            when.append(len(lines(tmp_path)))
            raise ZeroDivisionError("a defect")
        return await play(self, task, index=index, **options)

    def slow(self: Learner, batch: Any) -> dict[str, float]:
        time.sleep(0.5)  # so that a group has always ended when the next step asks
        return step(self, batch)

    monkeypatch.setattr(AgentLoop, "run", broken)
    monkeypatch.setattr(Learner, "step", slow)
    run = run_of(tiny_dir, tmp_path, max_staleness=2, prompts_per_step=1, concurrency=12)
    with pytest.raises(ExceptionGroup) as found:
        await finished(replace(run, held_out=None))
    assert found.value.subgroup(ZeroDivisionError) is not None
    assert len(lines(tmp_path)) <= when[0] + 1


async def test_what_is_played_again_keeps_others_from_being_begun(
    tiny_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two groups of three have all six places; the third one waits until one has ended, and not until all fail."""
    play, tries = AgentLoop.run, []
    playing: list[int] = []

    async def failed_once(self: AgentLoop, task: Task, *, attempt: int = 1, **options: Any) -> TrajectoryResult:
        tries.append((options["index"] // 3, attempt))
        playing.append(options["index"])
        assert len(playing) <= 6, "what waits for a place is not played"
        try:
            result = await play(self, task, attempt=attempt, **options)
        finally:
            playing.remove(options["index"])
        return replace(result, cause=Cause.INFRA, error="lost") if attempt == 1 else result

    monkeypatch.setattr(AgentLoop, "run", failed_once)
    run = run_of(tiny_dir, tmp_path, steps=2, infra_retries=1)
    assert await finished(replace(run, held_out=None))
    first = tries.index((2, 1))
    assert [attempt for group, attempt in tries[:first] if group < 2].count(2) >= 1


async def test_a_run_serves_the_figures_that_the_documentation_names(
    tiny_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (Path(__file__).parents[3] / "docs" / "reference" / "metrics.md").read_text(encoding="utf-8")
    address = f"127.0.0.1:{free_port()}"

    def scraped() -> dict[str, dict[str, float]]:
        """Name -> value of its label, empty where it has none -> value; nothing while nothing is served."""
        try:
            with urllib.request.urlopen(f"http://{address}/metrics", timeout=20) as answer:
                text = str(answer.read(), "utf-8")
        except OSError:  # not there yet, or not any more
            return {}
        found: dict[str, dict[str, float]] = {}
        for sample in (each for family in text_string_to_metric_families(text) for each in family.samples):
            if sample.name.startswith("fairbox_training_") and not sample.name.endswith("_created"):
                found.setdefault(sample.name, {})["".join(sample.labels.values())] = sample.value
        return found

    step = Learner.step
    told = [threading.Event() for _ in range(4)]  # by steps done

    def watched(self: Learner, batch: Any) -> dict[str, float]:
        assert told[self.steps_done].wait(60)
        return step(self, batch)

    monkeypatch.setattr(Learner, "step", watched)
    run = run_of(tiny_dir, tmp_path, steps=3, metrics_listen=address)
    work = asyncio.ensure_future(finished(run))
    seen: list[dict[str, dict[str, float]]] = []
    while not work.done():
        if now := await asyncio.to_thread(scraped):
            seen.append(now)
            told[int(now["fairbox_training_step"][""])].set()
        await asyncio.sleep(0.005)
    assert await work
    table = page.partition("\n## Training")[2]
    assert seen[-1].keys() == set(re.findall(r"`(fairbox_training_[a-z_]+)`", table))
    assert {now["fairbox_training_step"][""] for now in seen} >= {0, 1, 2}
    assert {"reward", "masked", "grad_norm", "async/engine_idle"} <= seen[-1]["fairbox_training_figure"].keys()
