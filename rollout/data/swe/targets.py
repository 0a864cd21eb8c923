"""Where a patch changes files, by lines: the column `target`, and the line ranges of rows made for verifiers."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from rollout.data.swe.patch import Patch

__all__ = ["LineRange", "answer_column", "hunk_targets", "line_ranges", "target_column"]


@dataclass(frozen=True, slots=True)
class LineRange:
    """Lines of a file before and after, counted from 1."""

    old_start: int
    old_count: int
    new_start: int
    new_count: int


def hunk_targets(patch: Patch) -> list[tuple[str, list[int]]]:
    """(path, [old_start, old_count]) of each hunk, in the order of the patch. Files of all kinds, not Python alone.

    Paths are those of the searched tree, so hunks of a deleted file are its own, and those of a renamed file have its
    old name. (`extract_functions_from_patch` of agentic-code-search-oss, which made such columns first, gives the hunks
    of a deleted file to the file before it in the patch, and a renamed file its new name.)
    """
    return [(file.searched_path, [hunk.old_start, hunk.old_count]) for file in patch.files for hunk in file.hunks]


def target_column(patch: Patch) -> str:
    """`hunk_targets` as rows have it: the repr, which `ast.literal_eval` reads."""
    return repr(hunk_targets(patch))


def line_ranges(patch: Patch) -> dict[str, list[LineRange]]:
    """Path afterwards (before, of a deleted file) -> the lines of its hunks. Files without hunks are not in it."""
    ranges: dict[str, list[LineRange]] = {}
    for file in patch.files:
        for hunk in file.hunks:
            each = LineRange(hunk.old_start, hunk.old_count, hunk.new_start, hunk.new_count)
            ranges.setdefault(file.path, []).append(each)
    return ranges


def answer_column(patch: Patch) -> str:
    """The column `answer` of rows for verifiers: JSON of path -> its lines, from the first hunk to the last.

    The form is that of `parse_patch` of agentic-code-search-oss, which takes an added line `@@ -5 +6 @@` for a hunk.
    """
    return json.dumps({path: _answer(ranges) for path, ranges in line_ranges(patch).items()})


def _answer(ranges: list[LineRange]) -> dict[str, Any]:
    old = min(each.old_start for each in ranges)
    new = min(each.new_start for each in ranges)
    old_end = max(each.old_start + each.old_count for each in ranges)
    new_end = max(each.new_start + each.new_count for each in ranges)
    return asdict(LineRange(old, old_end - old, new, new_end - new)) | {"hunks": [asdict(each) for each in ranges]}
