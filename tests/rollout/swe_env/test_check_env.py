"""`fairbox data swe`: which rows are sound, and which are not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rollout.cli import main
from rollout.stack import LocalStack
from tests.rollout.services import LAZY, executor_status
from tests.rollout.swe_env.repository import (
    FAIL_TO_PASS,
    HIDDEN,
    PASS_TO_PASS,
    SOURCES,
    add_repository,
    commit,
    patch_of,
    python_layers,
    row,
    write_rows,
)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    commit(tmp_path / "calc", SOURCES)
    return tmp_path / "calc"


@pytest.fixture
async def stack(place: Path, tmp_path: Path) -> AsyncIterator[LocalStack]:
    add_repository(tmp_path / "store", "calc", place, python_layers())
    async with LocalStack(executor_args=[f"image_dir={tmp_path / 'store'}", *LAZY]) as stack:
        if not (await executor_status(stack)).HasField("images"):
            pytest.skip("nothing is mounted at this level")
        yield stack


async def test_rows_are_named_with_what_their_solutions_are_worth(
    stack: LocalStack, place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fixed = SOURCES["calc/core.py"].replace("-", "+", 1)
    rows = [
        row("sound", place),
        row("no-solution", place, patch=None),
        row("wrong-solution", place, patch=patch_of(place, {"README": "Multiplies.\n"})),
        row("no-such-test", place, PASS_TO_PASS=[*PASS_TO_PASS, "tests/test_core.py::test_gone"]),
        row("easy", place, FAIL_TO_PASS=[PASS_TO_PASS[0]]),
        row("nowhere", place, image_name="nowhere"),
    ]
    data = write_rows(tmp_path / "rows.jsonl", rows)
    given = ["data", "swe", f"data={data}", f"executor={stack.ports.executor}"]
    assert await asyncio.to_thread(main, given) == 1
    said = capsys.readouterr().out
    lines = said.splitlines()
    assert lines.pop() == "6 rows, 4 of them broken"
    assert {
        "sound: solution 1, nothing 0",
        "no-solution: no solution, nothing 0",
        "wrong-solution: solution 0, nothing 0: BROKEN",
        "no-such-test: solution 0, nothing 0: BROKEN",
        "  failed: tests/test_core.py::test_gone",
        f"  failed: {FAIL_TO_PASS[0]}",
        "easy: solution 1, nothing 1: BROKEN",
    } <= set(lines)
    assert "nowhere: could not be checked: " in said
    assert await asyncio.to_thread(main, [*given, "n=2"]) == 0
    # A row whose patch makes what is to be fixed: here the patch turns the fixed sources into the image's.
    commit(place, {"calc/core.py": fixed})
    undone = patch_of(place, {"calc/core.py": SOURCES["calc/core.py"]})
    test_patch = patch_of(place, {"tests/test_core.py": HIDDEN})
    write_rows(data, [row("reversed", place, patch=undone, test_patch=test_patch)])
    assert await asyncio.to_thread(main, [*given, "reverse=true"]) == 0


def test_bad_rows_and_settings_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = write_rows(tmp_path / "rows.jsonl", [{"instance_id": "a"}])
    assert main(["data", "swe", f"data={data}"]) == 1
    assert "rows.jsonl:1: repo must be a text that is not empty" in capsys.readouterr().err
    assert main(["data", "swe", f"data={data}", "image={nme}"]) == 2
    assert "image is '{nme}', must be a name, with braces in" in capsys.readouterr().err
