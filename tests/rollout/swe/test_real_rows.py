"""Rows of SWE-bench Lite and SWE-smith: every patch is read exactly, and truths made of sources are right."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from rollout.data.records import read_records
from rollout.data.swe import Dialect, parse_patch
from rollout.data.swe.build import build
from rollout.data.swe.trees import Clones
from tests.rollout.real_tasks import origin, real_rows

SIDES = ("removed", "added")


def changed_lines(patch: str) -> dict[str, tuple[list[int], list[int]]]:
    """File -> numbers of the lines removed from the old one, and of those added in the new one."""
    found: dict[str, tuple[list[int], list[int]]] = {}
    path, old, new, old_left, new_left = "", 0, 0, 0, 0
    for line in patch.split("\n"):
        if old_left or new_left:
            if line.startswith("-"):
                found[path][0].append(old)
            elif line.startswith("+"):
                found[path][1].append(new)
            elif line.startswith("\\"):
                continue
            if not line.startswith("+"):
                old, old_left = old + 1, old_left - 1
            if not line.startswith("-"):
                new, new_left = new + 1, new_left - 1
        elif line.startswith("+++ b/"):
            path = line[6:].split("\t")[0]
            found[path] = ([], [])
        elif match := re.match(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@", line):
            old, new = int(match[1]), int(match[3])
            old_left, new_left = int(match[2] or 1), int(match[4] or 1)
            old, new = old + (old_left == 0), new + (new_left == 0)
    return found


def records(*path: str) -> list[tuple[str, dict[str, Any]]]:
    place = Path(os.environ.get("FAIRBOX_DATA", ""), *path)
    if not os.environ.get("FAIRBOX_DATA") or not place.is_file():
        pytest.skip(f"set FAIRBOX_DATA to a folder with {'/'.join(path)}")
    return list(read_records(place))


@pytest.mark.parametrize("path", [("swebench", "swebench_lite.jsonl"), ("swe_smith", "code_search.parquet")])
def test_every_patch_is_read_exactly(path: tuple[str, str]) -> None:
    columns = [record.get(name, "") for _, record in records(*path) for name in ("patch", "test_patch")]
    texts = [text for text in columns if text]
    assert len(texts) >= 82
    for text in texts:
        files = [file for file in parse_patch(text).files if file.new_path and file.hunks]
        numbers = {
            file.path: tuple([number for hunk in file.hunks for number, _ in getattr(hunk, side)] for side in SIDES)
            for file in files
        }
        assert numbers == {name: found for name, found in changed_lines(text).items() if name in numbers}
        assert [f"+++ b/{file.path}" for file in files] == re.findall(r"^\+\+\+ b/[^\t\n]+", text, re.MULTILINE)


@pytest.mark.timeout(600)
def test_truths_of_swe_smith_are_the_given_ones(tmp_path: Path) -> None:
    rows = real_rows()
    for row in rows:
        place = tmp_path / str(row["repo"])
        if not place.exists():
            shutil.copytree(origin(row), place, symlinks=True)
    built = build([("", row) for row in rows], Clones(tmp_path), dialect=Dialect.CODESCOUT, use_patch=True)
    # Releases are not quite the commits that the patches were made of: some lines lie elsewhere.
    assert (built.left, built.differs, built.made) == ([], [], len(rows))
