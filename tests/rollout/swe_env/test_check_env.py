"""`fairbox check-env env=swe`: which rows are sound, and what is wrong with the others."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rollout.cli import main
from rollout.stack import LocalStack
from tests.rollout.services import executor_status
from tests.rollout.swe_env.repository import (
    FAIL_TO_PASS,
    HIDDEN,
    PASS_TO_PASS,
    SOURCES,
    add_repository,
    commit,
    git,
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
    async with LocalStack(executor_args=[f"image_dir={tmp_path / 'store'}"]) as stack:
        if not (await executor_status(stack)).HasField("images"):
            pytest.skip("nothing is mounted at this level")
        yield stack


async def checked(stack: LocalStack, rows: list[dict[str, object]], tmp_path: Path, *given: str) -> dict[str, set[str]]:
    """Row -> kinds of its findings."""
    data, out = write_rows(tmp_path / "rows.jsonl", rows), tmp_path / "findings.json"
    words = ["env=swe", f"data={data}", f"executor={stack.ports.executor}", f"json={out}", "repeats=1", "parallel=4"]
    await asyncio.to_thread(main, ["check-env", *words, *given])
    return {each["name"]: {finding["kind"] for finding in each["findings"]} for each in json.loads(out.read_text())}


async def test_rows_are_named_with_what_is_wrong_with_them(
    stack: LocalStack, place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [
        row("sound", place),
        row("no-solution", place, patch=None),
        row("wrong-solution", place, patch=patch_of(place, {"README": "Multiplies.\n"})),
        row("no-such-test", place, PASS_TO_PASS=[*PASS_TO_PASS, "tests/test_core.py::test_gone"]),
        row("easy", place, FAIL_TO_PASS=[PASS_TO_PASS[0]]),
        row("nowhere", place, image_name="nowhere"),
    ]
    assert await checked(stack, rows, tmp_path, "cheats=false") == {
        "sound": set(),
        "no-solution": set(),
        "wrong-solution": {"solution_fails"},
        "no-such-test": {"solution_fails"},
        "easy": {"nothing_passes"},
        "nowhere": {"not_checked"},
    }
    said = capsys.readouterr().out
    assert "no-such-test: solution 0, nothing 0: BROKEN\n  solution_fails: the solution is worth 0; failed: " in said
    assert "failed: tests/test_core.py::test_gone (mend" in said
    assert f"failed: {', '.join(FAIL_TO_PASS)} (mend" in said


async def test_no_cheat_is_worth_anything(stack: LocalStack, place: Path, tmp_path: Path) -> None:
    assert await checked(stack, [row("sound", place)], tmp_path) == {"sound": set()}


async def test_a_patch_that_makes_what_is_to_be_fixed_is_undone(stack: LocalStack, place: Path, tmp_path: Path) -> None:
    """Here it turns the fixed sources into the image's."""
    commit(place, {"calc/core.py": SOURCES["calc/core.py"].replace("-", "+", 1)})
    undone = patch_of(place, {"calc/core.py": SOURCES["calc/core.py"]})
    reverse = row("reversed", place, patch=undone, test_patch=patch_of(place, {"tests/test_core.py": HIDDEN}))
    assert await checked(stack, [reverse], tmp_path, "cheats=false") == {"reversed": set()}


async def test_later_history_is_found(stack: LocalStack, place: Path, tmp_path: Path) -> None:
    """Commits that no branch names too."""
    git(place, "branch", "kept")
    commit(place, {"calc/core.py": SOURCES["calc/core.py"].replace("-", "+", 1)})
    git(place, "reset", "-q", "--hard", "kept")
    add_repository(tmp_path / "store", "later", place, python_layers())
    found = await checked(stack, [row("later", place, image_name="later")], tmp_path, "cheats=false")
    assert found == {"later": {"later_history"}}


def test_bad_rows_and_settings_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = write_rows(tmp_path / "rows.jsonl", [{"instance_id": "a"}])
    assert main(["check-env", "env=swe", f"data={data}"]) == 1
    assert "rows.jsonl:1: repo must be a text that is not empty" in capsys.readouterr().err
    assert main(["check-env", "env=swe", f"data={data}", "env_config.image={nme}"]) == 2
    assert "image is '{nme}', must be a name, with braces in" in capsys.readouterr().err
