"""docs/reference against the code and the protos that it is made from."""

from __future__ import annotations

import re
from pathlib import Path
from unittest.mock import patch

import pytest

from executor_service import Cause, Outcome
from executor_service.runs.tally import RunTally
from executor_service.v1 import executor_pb2
from fairbox.v1 import common_pb2
from limiter.v1 import limiter_pb2
from rollout.v1 import rollout_pb2
from tests.reference import FOLDER, PAGES, ROOT, anchor


def written(name: str) -> str:
    """A page as it is committed."""
    return (FOLDER / f"{name}.md").read_text(encoding="utf-8")


def anchors(path: Path) -> list[str]:
    """Anchors that links may use for the headings of a page."""
    return [anchor(heading) for heading in re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)]


@pytest.mark.parametrize("name", PAGES)
def test_the_pages_are_those_of_the_code(name: str) -> None:
    with patch("os.cpu_count", return_value=97):  # as another machine has
        assert written(name) == PAGES[name](), f"docs/reference/{name}.md is not what the code says: run `make docs`"


def test_no_link_is_dead() -> None:
    dead = []
    for page in (*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md")):
        for target in re.findall(r"\]\((?!https?://)([^)\s]+)\)", page.read_text(encoding="utf-8")):
            path, _, fragment = target.partition("#")
            there = page.parent / path if path else page
            if not there.exists() or (fragment and fragment not in anchors(there)):
                dead.append(f"{page.relative_to(ROOT)}: {target}")
    assert not dead


@pytest.mark.parametrize("name", PAGES)
def test_no_two_headings_have_one_anchor(name: str) -> None:
    found = anchors(FOLDER / f"{name}.md")
    assert len(set(found)) == len(found)


@pytest.mark.parametrize("name", PAGES)
def test_every_row_can_be_read(name: str) -> None:
    width, wrong = 0, []
    for line in written(name).splitlines():
        cells = re.split(r"(?<!\\)\|", line)[1:-1] if line.startswith("|") else []
        if cells and width and (len(cells) != width or not cells[0].strip() or not cells[-1].strip()):
            wrong.append(line)
        width = len(cells)
    assert not wrong


def test_every_message_and_call_of_the_services_is_listed() -> None:
    page = written("api")
    for module in (executor_pb2, limiter_pb2, rollout_pb2, common_pb2):
        file = module.DESCRIPTOR
        names = [*file.message_types_by_name, *file.enum_types_by_name, *file.services_by_name]
        assert all(f"### {file.package}.{name}\n" in page for name in names)
        members = [field for message in file.message_types_by_name.values() for field in message.fields]
        members += [value for kind in file.enum_types_by_name.values() for value in kind.values]
        members += [call for service in file.services_by_name.values() for call in service.methods]
        rows = page.partition(f"\n## {file.package}\n")[2].partition("\n## ")[0].count("\n| `")
        assert rows == len(members)


def test_the_causes_of_outcomes_are_those_that_are_counted() -> None:
    counted = {
        (Outcome(sample.labels["outcome"].upper()), Cause(sample.labels["cause"].upper()))
        for metric in RunTally().collect()
        for sample in metric.samples
        if "outcome" in sample.labels
    }
    rows = written("outcomes").partition("## Programs")[2].partition("\n## ")[0]
    listed = re.findall(r"^\| `([A-Z_]+)` \| (\w+) \|", rows, re.MULTILINE)
    assert {(Outcome(outcome), Cause(cause)) for outcome, cause in listed} == counted
