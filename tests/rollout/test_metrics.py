"""Figures of trajectories and of batches, and that masked trajectories are in none of them."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from executor_service import Cause
from rollout.loop import PhaseTimes, StopReason, ToolCallRecord, TrajectoryResult
from rollout.metrics import (
    RolloutMetrics,
    files_read,
    first_hit,
    trajectory_metrics,
)
from rollout.rewards import Reward
from rollout.tools import ToolOutcome
from tests.interop.results import result, sampled, tool


def bash(turn: int, command: str, text: str = "", outcome: ToolOutcome = ToolOutcome.OK) -> ToolCallRecord:
    arguments = {"command": command}
    raw = json.dumps({"name": "bash", "arguments": arguments})
    return ToolCallRecord(turn, "bash", arguments, raw, outcome, text, run_s=0.5)


def two_turns(**fields: Any) -> TrajectoryResult:
    """Turns of 3 and 2 tokens after prompts of 4 and 9."""
    return result([1, 2, 3, 4], sampled([5, 6], version="1"), sampled([7]), tool([8, 9]), sampled([1, 2]), **fields)


def test_tokens_and_steps() -> None:
    calls = (bash(1, "ls"), bash(1, "ls a"))
    figures = trajectory_metrics(two_turns(turns=2, tool_calls=calls))
    assert dict(list(figures.items())[:8]) == {
        "tokens": 14,
        "steps": 2,
        "avg_tool_calls_per_step": 1,
        "wall_clock_duration": 2,
        "total_prompt_tokens": 9,
        "total_response_tokens": 5,
        "avg_prompt_tokens_per_step": 4.5,
        "avg_response_tokens_per_step": 2.5,
    }


def test_a_trajectory_that_did_nothing_has_zeros() -> None:
    figures = trajectory_metrics(result([1, 2], turns=0, tool_calls=()))
    assert set(figures.values()) == {0, 2}  # 2 seconds
    assert figures["wall_clock_duration"] == 2


def test_calls_by_turn() -> None:
    calls = (bash(1, "a"), bash(3, "b"), bash(1, "c"))
    figures = trajectory_metrics(two_turns(turns=3, tool_calls=calls))
    assert (figures["num_turns"], figures["num_tool_calls"], figures["num_tool_calls_per_turn"]) == (3, 3, 1)


@pytest.mark.parametrize(
    ("command", "files"),
    [
        ("cat src/a.py", {"src/a.py"}),
        ("cd /testbed && sed -n '1,80p' ./src/a.py | head -5", {"src/a.py"}),
        ("head -n 5 /testbed/a.py; nl b/Makefile 2>/dev/null", {"a.py", "b/Makefile"}),
        ("cat 'a b.py' \"c.py\"", {"c.py"}),
        ("rg -n parse src/a.py", set()),
        ("cat src/*.py .. .", set()),
        ("cat 'unclosed.py", {"unclosed.py"}),
        ("", set()),
    ],
)
def test_files_read(command: str, files: set[str]) -> None:
    assert set(files_read([bash(1, command)])) == files
    assert not files_read([bash(1, command, outcome=ToolOutcome.OVER_BUDGET)])


@pytest.mark.timeout(60)
def test_long_commands_are_read_in_linear_time() -> None:
    for piece in ("'", '"', "a/", "cat a.py;", "../", "a", "'\""):
        files_read([bash(1, "cat " + piece * (200_000 // len(piece)))])
    first_hit([bash(1, "ls", "src/a.py" * 30_000)], ["src/b.py", "rc/a.py"])


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("src/a.py:3: def", True),
        ("./src/a.py", True),
        ("/testbed/src/a.py", True),
        ("'src/a.py'", True),
        ("lib/src/a.py", False),
        ("../src/a.py", False),
        ("src/a.pyc", False),
        ("mysrc/a.py then src/a.py.", True),
        ("", False),
    ],
)
def test_a_file_is_seen_where_its_whole_path_is(text: str, seen: bool) -> None:
    assert first_hit([bash(2, "ls", text)], ["src/a.py"]) == (2 if seen else None)


def test_search_figures() -> None:
    calls = (bash(1, "ls"), bash(2, "rg x", "src/a.py:1:x"), bash(3, "ls"), bash(3, "cat src/a.py"))
    row = {"target": [("src/a.py", [1, 2])]}
    figures = trajectory_metrics(two_turns(turns=4, tool_calls=calls), row)
    assert (figures["files_read"], figures["duplicate_command_rate"]) == (1, 0.25)
    assert (figures["hit"], figures["first_hit_turn"]) == (1, 2)
    missed = trajectory_metrics(two_turns(tool_calls=calls[:1]), row)
    assert missed["hit"] == 0
    assert "first_hit_turn" not in missed
    assert "hit" not in trajectory_metrics(two_turns(tool_calls=calls))


def test_batch_has_means_of_what_was_scored_alone() -> None:
    metrics = RolloutMetrics()
    times = PhaseTimes(queue_s=1, engine_s=2, tool_wait_s=0, tool_run_s=1, total_s=5, score_s=0.25)
    found = two_turns(reward=0.5, times=times, tool_calls=(bash(1, "ls"), bash(1, "x", outcome=ToolOutcome.TIME_LIMIT)))
    metrics.add(found, {"files_read": 3, "hit": 1, "first_hit_turn": 2})
    lost = result([1], sampled([2]), reward=0.0, stop_reason=StopReason.TOOL_TIME, times=PhaseTimes(total_s=1))
    metrics.add(lost, {"files_read": 1, "hit": 0})
    masked = result([1], sampled([2] * 500), infra=True, attempts=2, tool_calls=(bash(1, "ls"),))
    metrics.add(masked, {"files_read": 1000})
    metrics.add(result([1], sampled([2] * 500), cause=Cause.TASK, unscored=True), {"files_read": 1000})
    flat = metrics.flat()
    assert flat["generate/num_trajectories"] == 4
    assert (flat["generate/num_masked"], flat["generate/num_errors"], flat["generate/num_retried"]) == (2, 1, 1)
    assert flat["generate/num_timeouts"] == 1
    assert (flat["stop/answered"], flat["stop/tool_time"], flat["stop/infra"]) == (0.5, 0.5, 0)
    sizes = [flat[f"generate/{which}_num_tokens"] for which in ("min", "max", "avg", "std")]
    assert sizes == [1, 7, 4, 3]
    assert (flat["generate/avg_tokens_non_zero_rewards"], flat["generate/avg_tokens_zero_rewards"]) == (7, 1)
    assert flat["generate/avg_tokens_per_turn"] == 2
    assert (flat["reward/avg_raw_reward"], flat["metrics/files_read"], flat["metrics/hit"]) == (0.25, 2, 0.5)
    assert flat["metrics/first_hit_turn"] == 2
    assert (flat["time/total_s/mean"], flat["time/total_s/max"], flat["time/total_s/p90"]) == (3, 5, 4.6)
    assert (flat["time/other_s/mean"], flat["time/score_s/mean"]) == (1, 0.125)
    assert (flat["tool/bash/calls"], flat["tool/bash/ok_rate"], flat["tool/bash/mean_run_s"]) == (2, 0.5, 0.5)
    assert all(type(value) is float for value in flat.values())


def test_negative_rewards_are_neither_zero_nor_above() -> None:
    metrics = RolloutMetrics()
    metrics.add(two_turns(reward=-1.0))
    flat = metrics.flat()
    assert (flat["generate/avg_tokens_non_zero_rewards"], flat["generate/avg_tokens_zero_rewards"]) == (0, 0)


def test_a_batch_of_nothing_has_counts_alone() -> None:
    flat = RolloutMetrics().flat()
    assert flat["generate/num_trajectories"] == flat["stop/answered"] == 0
    assert not [name for name in flat if name.startswith(("time/", "reward/", "metrics/", "tool/"))]


def test_names_that_a_model_makes_up_are_one_tool() -> None:
    metrics = RolloutMetrics()
    made_up = [ToolCallRecord(1, f"tool{n}", {}, "", ToolOutcome.UNKNOWN_TOOL, "no such tool") for n in range(9)]
    metrics.add(two_turns(tool_calls=tuple(made_up)))
    assert {name for name in metrics.flat() if name.startswith("tool/")} == {
        "tool/unknown/calls",
        "tool/unknown/ok_rate",
    }


def test_cases_of_tests_are_in_no_mean_of_rewards() -> None:
    metrics = RolloutMetrics()
    for passed in (1.0, 0.0):
        parts = {"code_tests": passed, "code_tests/case/0": passed, "code_tests/case/1": 1.0}
        metrics.add(replace(two_turns(uid="one"), reward=Reward(passed, parts)))
    flat = metrics.flat()
    assert [name for name in flat if "case" in name] == []
    assert (flat["reward/code_tests"], flat["tests/separating"], flat["tests/all_pass"]) == (0.5, 0.5, 0.5)
    assert list(metrics.mean_parts) == ["code_tests"]
