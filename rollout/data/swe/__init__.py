"""Code search: what a search should have found, from patches and the history of repositories.

`parse_patch` reads diffs; `truth`, `hunk_targets` and `line_ranges` say what they touch.
"""

from rollout.data.swe.patch import FilePatch, Hunk, Patch, PatchError, parse_patch
from rollout.data.swe.targets import LineRange, answer_column, hunk_targets, line_ranges, target_column
from rollout.data.swe.truth import Changes, Dialect, FileChange, TruthError, truth

__all__ = [
    "Changes",
    "Dialect",
    "FileChange",
    "FilePatch",
    "Hunk",
    "LineRange",
    "Patch",
    "PatchError",
    "TruthError",
    "answer_column",
    "hunk_targets",
    "line_ranges",
    "parse_patch",
    "target_column",
    "truth",
]
