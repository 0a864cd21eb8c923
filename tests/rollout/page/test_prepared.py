"""The page of the prepared run answers what docs/how-to/report.md asks: each answer is read two clicks from the first
view at most."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from examples.prepared_run import (
    APART,
    APART_STEP,
    GROUPS,
    LOST,
    LOST_STEP,
    SAMPLES,
    SLOW_STEP,
    STEPS,
    WAITED_S,
    write_run,
)
from rollout.dump import read_dump
from tests.rollout.page.conftest import Tab, page_of


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, model_dir: Path) -> Path:
    out = tmp_path_factory.mktemp("prepared") / "run"
    write_run(out)
    return out


@pytest.fixture(scope="module")
def page(run: Path) -> Path:
    return page_of(run)


def open_findings(tab: Tab, page: Path) -> None:
    """One click."""
    tab.open(page)
    tab.page.get_by_role("link", name="Findings", exact=True).click()
    tab.page.wait_for_selector('body[data-view="find"][data-shown]')


def table(tab: Tab, title: str) -> Any:
    return tab.page.locator(f'section.card:has(h3:text-is("{title}")) tbody tr')


def found(tab: Tab, title: str) -> list[list[str]]:
    """Cells of a table of the findings."""
    return [row.locator("td").all_inner_texts() for row in table(tab, title).all()]


def follow(tab: Tab, title: str) -> None:
    """Another click, on the first line of a table."""
    table(tab, title).first.get_by_role("link").click()


def test_why_a_step_was_slow(tab: Tab, page: Path) -> None:
    open_findings(tab, page)
    slowest, next_one = found(tab, "The slowest calls, waits included")[:2]
    assert slowest[0] == f"{WAITED_S:.1f} s"
    assert slowest[3].startswith(f"step {SLOW_STEP}, ")
    assert next_one[0].endswith(" ms")
    follow(tab, "The slowest calls, waits included")
    tab.page.wait_for_selector('body[data-view="row"][data-shown]')
    assert f"waited {WAITED_S:.1f} s" in tab.text()


def test_which_trajectories_were_masked_and_by_whose_fault(tab: Tab, page: Path) -> None:
    open_findings(tab, page)
    ((count, cause, why, where),) = found(tab, "Masked, by whose fault and why")
    assert (count, cause) == ("3", "INFRA")
    assert why.split("#")[-1] == LOST.split("50051")[1]
    assert where.count(f"step {LOST_STEP}, line") == 3


def test_where_trainer_and_engine_differ_most(tab: Tab, page: Path) -> None:
    open_findings(tab, page)
    first, second = found(tab, "The tokens on which trainer and engine differ most")[:2]
    assert abs(float(first[0]) - APART) < 0.02
    assert abs(float(second[0])) < 0.02
    assert first[3].startswith(f"step {APART_STEP}, ")
    follow(tab, "The tokens on which trainer and engine differ most")
    tab.page.wait_for_selector(".tokens .here")
    assert "ratio 0.0001" in tab.text(".token-status")


def test_its_dumps_are_dumps(run: Path) -> None:
    for step in range(1, STEPS + 1):
        assert len(list(read_dump(run / "rollouts" / f"{step}.jsonl"))) == GROUPS * SAMPLES
