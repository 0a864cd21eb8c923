"""Figures of pages: those of `summary.json`, and what is worth a look."""

from __future__ import annotations

import dataclasses
import json
import math
import random
from pathlib import Path
from typing import Any

import pytest

from executor_service import Cause
from fairbox.errors import ConfigError, FairboxError
from rollout.cli import main
from rollout.dump import read_dump, trainer_file, write_trainer_logprobs
from rollout.engines import EngineStatistics
from rollout.loop import PhaseTimes, StopReason, ToolCallRecord, TrajectoryResult
from rollout.metrics import RolloutMetrics
from rollout.page import agreement
from rollout.page.agreement import LEAST_ROWS, NOTHING
from rollout.report import FinishedRun, write_summary
from rollout.rewards import Reward
from rollout.tools import ToolOutcome
from tests.interop.results import result, sampled, tool
from tests.rollout.page.conftest import page_facts, page_of, write_dump

SAME = ("finished", "retried", "masked", "scored", "score_mean", "turns", "stops", "causes", "tool_calls", "tokens")


def call(outcome: ToolOutcome, text: str, run_s: float = 0.1) -> ToolCallRecord:
    return ToolCallRecord(1, "code_interpreter", {"code": "print(1)"}, "{}", outcome, text, wait_s=0.2, run_s=run_s)


def results() -> list[TrajectoryResult]:
    times = PhaseTimes(0.1, 2 / 3, 0.3, 0.7, 2.0, 0.1)
    calls = (call(ToolOutcome.OK, "1"), call(ToolOutcome.PROGRAM_ERROR, "Traceback\nKeyError: 17\n", 9.0))
    found = [
        result([1, 2, 3], sampled([4, 5]), tool([6]), sampled([7], logprob=-9.0), tool_calls=calls, times=times),
        result([1, 2], sampled([4, 5]), tool_calls=(call(ToolOutcome.PROGRAM_ERROR, "KeyError: 3"),), uid="v"),
        result([1, 2], sampled([4, 5], logprob=-0.25), times=times, uid="v", attempts=2),
        result([1, 2], sampled([4]), infra=True, uid="w", tool_calls=(call(ToolOutcome.INFRA, ""),)),
        result([1, 2], sampled([4]), uid="w", unscored=True, cause=Cause.TASK),
        result([1, 2], sampled([4]), uid="w", stop_reason=StopReason.TURNS),
    ]
    rewards = {0: Reward(0.1, {"a": 0.1, "b": 1.0}), 1: Reward(0.2, {"a": 0.7}), 2: Reward(0.2), 5: Reward(1 / 3)}
    return [dataclasses.replace(each, reward=rewards.get(number), index=number) for number, each in enumerate(found)]


def summarize(folder: Path, *results: TrajectoryResult, complete: bool = True) -> dict[str, Any]:
    """Writes and reads the summary of a dump."""
    metrics = RolloutMetrics()
    for each, record in zip(results, read_dump(folder / "1.jsonl"), strict=True):
        metrics.add(each, record["metrics"])
    run = FinishedRun(metrics, len(results), 12.0, folder / "1.jsonl", EngineStatistics(), complete=complete)
    summary: dict[str, Any] = json.loads(write_summary(run).read_text())
    return summary


def test_figures_are_those_of_the_summary_to_the_last_bit(tmp_path: Path) -> None:
    write_dump(tmp_path, *results())
    summary = summarize(tmp_path, *results())
    figures = page_facts(page_of(tmp_path))["figures"]
    assert {name: figures[name] for name in SAME} == {name: summary[name] for name in SAME}
    assert figures["phase_seconds"] == summary["phase_seconds"]
    parts = {name.removeprefix("reward/"): value for name, value in summary["metrics"].items() if "reward/" in name}
    assert figures["reward_parts"] == {"a": parts["a"], "b": parts["b"]}
    assert figures["score_mean"] == parts["avg_raw_reward"]


def test_masked_rows_are_counted_by_cause_and_by_calls(tmp_path: Path) -> None:
    write_dump(tmp_path, *results())
    figures = page_facts(page_of(tmp_path))["figures"]
    masked = {(each["cause"], each["called"]): each["rows"] for each in figures["masked_by"]}
    assert masked == {("INFRA", True): 1, ("TASK", False): 1}
    assert (figures["calling"], figures["silent"]) == (3, 3)


def test_what_is_worth_a_look_is_found(tmp_path: Path) -> None:
    write_dump(tmp_path, *results())
    findings = page_facts(page_of(tmp_path))["findings"]
    assert findings["tokens"][0] == {"logprob": -9.0, "row": 0, "at": 6, "id": 7}
    assert len(findings["tokens"]) == 10
    assert (findings["slow"][0]["seconds"], findings["slow"][0]["row"], findings["slow"][0]["call"]) == (9.2, 0, 1)
    failure = findings["failures"][0]
    assert (failure["text"], failure["calls"], failure["rows"]) == ("KeyError: #", 2, [0, 1])


def test_parts_and_tests_that_tell_nothing_are_found(tmp_path: Path) -> None:
    draws = random.Random(3)
    found = []
    for number in range(200):
        right, brief = draws.random() < 0.5, draws.random()
        parts = {"right": float(right), "brief": brief, "chance": draws.random(), "format": 1.0}
        parts |= {"score": 1.0 - parts["right"], "x" * 1000: draws.random()}
        parts |= {"short": brief + draws.random()} if number % 2 else {}
        parts |= {"code/case/a": float(right), "code/case/b": 0.0}
        each = result([1, 2], sampled([4, 5]), uid=f"u{number % 50}", trajectory_id=str(number))
        found.append(dataclasses.replace(each, reward=Reward(float(right), parts)))
    masked = result([1, 2], sampled([4]), infra=True)
    write_dump(tmp_path, masked, *found)
    rewards = page_facts(page_of(tmp_path))["findings"]["rewards"]
    assert [(each["part"], each["rows"], each["always"]) for each in rewards["parts"]] == [
        ("chance", 200, None),
        ("format", 200, 1.0),
    ]
    assert abs(rewards["parts"][0]["correlation"]) < NOTHING
    assert len(rewards["suspects"]) == 50 - sum(
        all(each.reward is not None and not each.reward.value for each in found[n::50]) for n in range(50)
    )
    assert rewards["suspects"][0] == {"row": 1, "group": "u0", "tests": ["code/case/b"]}
    write_dump(tmp_path / "few", *found[: LEAST_ROWS - 1])
    assert page_facts(page_of(tmp_path / "few"))["findings"]["rewards"]["parts"] == []


def test_more_results_of_tests_than_are_looked_at_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reward = Reward(0.5, {"code/case/a": 1.0, "code/case/b": 0.0})
    write_dump(tmp_path, *(dataclasses.replace(result([1], sampled([2]), uid=uid), reward=reward) for uid in "uv"))
    for most, groups in ((4, ["u", "v"]), (3, ["u"])):
        monkeypatch.setattr(agreement, "MOST_RUNS", most)
        findings = page_facts(page_of(tmp_path))["findings"]
        assert [each["group"] for each in findings["rewards"]["suspects"]] == groups
        assert findings["truncated"] is (most == 3)


@pytest.mark.parametrize("complete", [True, False, None])
def test_a_run_that_was_cut_off_says_so(tmp_path: Path, complete: bool | None) -> None:
    write_dump(tmp_path, *results())
    if complete is not None:
        summarize(tmp_path, *results(), complete=complete)
    unfinished = page_facts(page_of(tmp_path))["unfinished"]
    assert {True: "", False: "interrupted", None: "no summary.json"}[complete] in unfinished
    assert bool(unfinished) is (complete is not True)


def test_a_line_that_is_not_whole_is_left_out_and_told(tmp_path: Path) -> None:
    write_dump(tmp_path, *results())
    path = tmp_path / "1.jsonl"
    path.write_bytes(path.read_bytes() + b'[]\n{"score": 1, "inp')
    facts = page_facts(page_of(tmp_path))
    assert (facts["figures"]["finished"], facts["figures"]["broken"]) == (6, 1)
    assert "step 1 is not whole" in facts["unfinished"]


def test_curves_of_a_training_run_are_found_above_its_steps(tmp_path: Path) -> None:
    write_dump(tmp_path / "rollouts", *results())
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "reward": 0.5, "grad_norm": null}\n{"step": 2, "rew')
    page = page_of(tmp_path)
    assert page == tmp_path / "report.html"
    facts = page_facts(page)
    assert facts["training"] == [{"step": 1, "reward": 0.5, "grad_norm": None}]
    assert "no trained model" in facts["unfinished"]
    write_dump(tmp_path / "evaluations", *results())
    evaluations = page_of(tmp_path / "evaluations")
    assert (evaluations.parent.name, page_facts(evaluations)["training"]) == ("evaluations", [])
    (tmp_path / "model").mkdir()
    assert page_facts(page_of(tmp_path))["unfinished"] == ""


def test_the_trainers_logprobs_are_found_by_id_and_where_they_differ_most_is_told(tmp_path: Path) -> None:
    earlier = result([1], sampled([2, 3], logprob=-1.0)).trajectory
    condensed = dataclasses.replace(result([4], sampled([5, 6, 7], logprob=-1.0)), earlier=(earlier,))
    whole = result([1, 2], sampled([8, 9], logprob=-2.0))
    given = {"condensed": condensed, "whole": whole, "masked": whole, "in no file": whole}
    write_dump(tmp_path / "rollouts", *(dataclasses.replace(each, trajectory_id=name) for name, each in given.items()))
    (tmp_path / "metrics.jsonl").write_text("")
    assert page_facts(page_of(tmp_path))["findings"]["gaps"] == []
    rows: list[tuple[str, list[list[float]]]] = [
        ("of no row", [[-9.0] * 9]),
        ("masked", [[]]),
        ("whole", [[-2.5, -2.0]]),
        ("condensed", [[-1.0, -4.0], [-1.0, -math.inf, -0.25]]),
    ]
    write_trainer_logprobs(trainer_file(tmp_path, "1"), rows)
    found = page_facts(page_of(tmp_path))["findings"]["gaps"]
    assert found == [
        {"gap": -3.0, "row": 0, "at": 2, "id": 3},
        {"gap": 0.75, "row": 0, "at": 6, "id": 7},
        {"gap": -0.5, "row": 1, "at": 2, "id": 8},
    ]


@pytest.mark.parametrize(
    "lists",
    [
        '"x"',
        "[[], {}]",
        "[null, null]",
        "[NaN, -2]",
        "[1e999, -2]",
        '["a", -1]',
        "[-1]",
        f"[-1{400 * '0'}, -2]",
        '[-2, -2], "earlier": 7',
        "[[",
        "\xff",
    ],
)
def test_nonsense_of_a_trainer_tells_nothing(tmp_path: Path, lists: str) -> None:
    whole = result([1, 2], sampled([8, 9], logprob=-2.0), trajectory_id="whole")
    write_dump(tmp_path / "rollouts", dataclasses.replace(whole, earlier=(whole.trajectory,)))
    (tmp_path / "metrics.jsonl").write_text("")
    file = trainer_file(tmp_path, "1")
    file.parent.mkdir()
    file.write_text(f'{{"request_id": "whole", "trainer_logprobs": {lists}}}\n', encoding="latin-1")
    assert page_facts(page_of(tmp_path))["findings"]["gaps"] == []


def test_the_command_writes_where_it_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_dump(tmp_path / "run", *results())
    assert main(["report", str(tmp_path / "run" / "1.jsonl"), f"to={tmp_path / 'new' / 'a.html'}"]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'new' / 'a.html'}\n"
    assert len(page_facts(tmp_path / "new" / "a.html")["steps"]) == 1
    assert main(["report", str(tmp_path / "nothing")]) != 0
    assert "neither a folder nor a file" in capsys.readouterr().err


def test_nothing_to_show_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has no steps yet"):
        page_of(tmp_path)


def test_a_page_replaces_the_one_before_and_leaves_nothing_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_dump(tmp_path, *results())
    monkeypatch.setattr("rollout.page.writer.MAX_INLINE", 0)
    assert page_facts(page_of(tmp_path))["parts"] == "report-parts"
    assert [each.name for each in (tmp_path / "report-parts").iterdir()] == ["0.js"]
    (tmp_path / "report-parts" / "mine.txt").touch()
    with pytest.raises(FairboxError, match=r"report-parts: holds mine\.txt"):
        page_of(tmp_path)
    (tmp_path / "report-parts" / "mine.txt").unlink()
    monkeypatch.undo()
    assert page_facts(page_of(tmp_path))["parts"] is None
    assert sorted(each.name for each in tmp_path.iterdir()) == ["1.jsonl", "report.html"]
