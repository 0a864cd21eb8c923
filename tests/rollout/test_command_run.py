"""A whole `fairbox rollout --up` of a model that makes no sense: what it says, and what it leaves behind."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import pytest

from rollout.dump import read_dump
from rollout.loop.results import PhaseTimes, ToolCallRecord
from tests.executor.servers import SLOWNESS
from tests.pages import DOCS, examples

ROOT = Path(__file__).parents[2]
PAGE = (DOCS / "reference" / "dump.md").read_text(encoding="utf-8")
FEW = ("n=2", "limits.max_turns=1", "limits.max_turn_tokens=8", "concurrency=2")


@pytest.fixture(scope="module")
def run(tiny_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """The folder of a healthy run, and what the command printed."""
    out = tmp_path_factory.mktemp("run") / "out"
    words = [sys.executable, "-m", "rollout.cli", "rollout", "--up", f"model={tiny_dir}", f"out={out}", *FEW]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=200 * SLOWNESS)
    assert done.returncode == 0, done.stderr
    return out, done


def test_the_services_of_a_healthy_run_are_quiet(run: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    _, done = run
    assert "starting limiter and executor" in done.stderr
    assert " INFO " not in done.stdout + done.stderr


def test_the_summary_has_the_figures_of_the_dump(run: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    out, done = run
    assert sorted(path.name for path in out.iterdir()) == ["1.jsonl", "summary.json"]
    assert f"the figures of this table, for programs: {out / 'summary.json'}" in done.stdout
    assert f"fairbox report {out}\n" in done.stdout
    summary, records = json.loads((out / "summary.json").read_text()), list(read_dump(out / "1.jsonl"))
    assert (summary["complete"], summary["dump"], summary["planned"], summary["finished"]) == (True, "1.jsonl", 2, 2)
    assert summary["tokens"]["sampled"] == sum(sum(record["response_mask"]) for record in records)
    assert summary["engine"]["sampled_tokens"] == summary["tokens"]["sampled"]
    assert sum(summary["stops"].values()) == sum(summary["causes"].values()) == 2
    assert summary["score_mean"] == sum(record["score"] for record in records) / 2
    assert summary["metrics"]["reward/avg_raw_reward"] == summary["score_mean"]
    assert summary["metrics"]["generate/num_trajectories"] == 2


def test_every_figure_of_the_summary_is_on_its_page(run: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    page = PAGE.partition("## The summary")[2].partition("\n## ")[0]
    summary = json.loads((run[0] / "summary.json").read_text())
    assert [name for name in summary if f"`{name}`" not in page] == []


def test_every_field_of_a_line_is_on_its_page(run: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    page = PAGE.partition("## The summary")[0]
    (record, *_) = read_dump(run[0] / "1.jsonl")
    names = [*record, *(field.name for kind in (PhaseTimes, ToolCallRecord) for field in dataclasses.fields(kind))]
    assert [name for name in names if f"`{name}`" not in page] == []


def test_the_program_of_the_page_reads_the_dump(
    run: tuple[Path, subprocess.CompletedProcess[str]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(run[0].parent)
    exec(examples("reference/dump.md", "python")[0], {})
    records = read_dump(run[0] / "1.jsonl")
    expected = [f"{each['uid']} {each['score']} {sum(each['response_mask'])}" for each in records]
    assert capsys.readouterr().out.splitlines() == expected
