"""The lines at which a patch changes files: the column `target`."""

from __future__ import annotations

from rollout.data.swe.patch import Patch


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
