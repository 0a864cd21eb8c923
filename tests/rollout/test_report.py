"""Sums of a run and the table that shows them."""

from __future__ import annotations

import dataclasses
import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from executor_service import Cause
from rollout.dump import DumpError
from rollout.engines import EngineStatistics
from rollout.loop import PhaseTimes, RequestState, StopReason, ToolCallRecord, TrajectoryResult
from rollout.metrics import RolloutMetrics
from rollout.report import FinishedRun, closing_table, write_summary
from rollout.rewards import Reward
from rollout.tools import ToolOutcome
from tests.interop.results import result, sampled, tool


def finished(outcome: ToolOutcome = ToolOutcome.OK) -> TrajectoryResult:
    call = ToolCallRecord(1, "code_interpreter", {"code": "print(1)"}, "{}", outcome, "1")
    times = PhaseTimes(1.0, 2.0, 3.0, 4.0, 10.0)
    return result([1, 2, 3], sampled([4, 5]), tool([6]), sampled([7]), tool_calls=(call,), times=times, reward=1.0)


def masked() -> TrajectoryResult:
    failed = {"state": RequestState.FAILED, "stop_reason": StopReason.INFRA, "cause": Cause.INFRA}
    return dataclasses.replace(finished(), reward=None, attempts=2, **failed)  # type: ignore[arg-type]


def shown(summary: RolloutMetrics, engine: EngineStatistics) -> str:
    text = io.StringIO()
    run = FinishedRun(summary, planned=4, wall_s=12.0, dump=Path("out/1.jsonl"), engine=engine)
    Console(file=text, width=160).print(closing_table(run))
    return text.getvalue()


def test_masked_trajectories_are_in_no_mean() -> None:
    summary = RolloutMetrics()
    summary.add(masked())
    assert "none scored" in shown(summary, EngineStatistics())
    summary.add(finished())
    summary.add(dataclasses.replace(finished(), reward=Reward(0.0)))
    assert (summary.mean_score, summary.scored, summary.masked, summary.retried) == (0.5, 2, 1, 1)


def test_parts_of_rewards_have_means_over_those_that_have_them() -> None:
    summary = RolloutMetrics()
    for reward in (Reward(1.0, {"a": 1.0, "b": 0.5}), Reward(0.0, {"a": 0.0})):
        summary.add(dataclasses.replace(finished(), reward=reward))
    summary.add(dataclasses.replace(finished(), reward=None, unscored=True, cause=Cause.TASK))
    assert (summary.mean_parts, summary.scored, summary.unscored) == ({"a": 0.5, "b": 0.5}, 2, 1)
    assert (summary.flat()["reward/a"], summary.flat()["reward/b"]) == (0.5, 0.5)
    text = shown(summary, EngineStatistics())
    assert "a 0.500, b 0.500" in text
    assert "1, 1 could not be scored, 0 rollouts were tried again" in text


def test_table_shows_the_sums() -> None:
    summary = RolloutMetrics()
    for each in (finished(), finished(outcome=ToolOutcome.MALFORMED), masked()):
        summary.add(each)
    engine = EngineStatistics(prompt_tokens=100, cached_tokens=40, sampled_tokens=30, busy_s=2.0)
    text = shown(summary, engine)
    for part in (
        "3 of 4 rollouts in 12 s",
        "1.000 over 2 scored",
        "1, 1 rollouts were tried again",
        "answered 2, infra 1",
        "6, 2.0 a rollout",
        "ok 2, malformed 1",
        "9 prompt, 9 sampled, 3 tool; 40 of 100 context tokens not computed again",
        "engine queue 1.00 s, engine 2.00 s, tool wait 3.00 s, tool run 4.00 s",
        "15 tokens/s",
        "out/1.jsonl",
    ):
        assert part in text
    assert "files read" not in text


def test_table_tells_how_repositories_were_searched() -> None:
    summary = RolloutMetrics()
    summary.add(finished(), {"num_tool_calls_per_turn": 1.5, "files_read": 3, "duplicate_command_rate": 0.25, "hit": 0})
    summary.add(masked(), {"files_read": 1000})
    assert "1.5 calls a turn, 3.0 files read, 25% of calls repeated, a right file seen by 0%" in shown(
        summary, EngineStatistics()
    )


def test_a_summary_without_a_score_has_none_and_one_that_cant_be_written_says_so(tmp_path: Path) -> None:
    figures = RolloutMetrics()
    figures.add(masked())
    run = FinishedRun(figures, planned=4, wall_s=12.0, dump=tmp_path / "1.jsonl", engine=EngineStatistics())
    path = write_summary(run)
    found = json.loads(path.read_text())
    assert (found["score_mean"], found["finished"], found["tool_calls"]) == (None, 1, {"ok": 1})
    with pytest.raises(DumpError, match=r"nowhere/summary\.json: can't be written: No such file or directory"):
        write_summary(dataclasses.replace(run, dump=tmp_path / "nowhere" / "1.jsonl"))
    assert [each.name for each in tmp_path.iterdir()] == ["summary.json"]
