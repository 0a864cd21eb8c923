"""Code search: what a search should have found, from patches and the history of repositories.

`parse_patch` and `apply_patch` read and apply diffs; `truth`, `hunk_targets` and `line_ranges` say what they touch.
"""

from rollout.data.swe.apply import ApplyError, apply_file, apply_patch
from rollout.data.swe.parse import PatchError, parse_patch
from rollout.data.swe.patch import ChangeKind, FilePatch, Hunk, Line, Patch
from rollout.data.swe.targets import LineRange, answer_column, hunk_targets, line_ranges, target_column
from rollout.data.swe.truth import Changes, Dialect, FileChange, TruthError, searched_path, truth

__all__ = [
    "ApplyError",
    "ChangeKind",
    "Changes",
    "Dialect",
    "FileChange",
    "FilePatch",
    "Hunk",
    "Line",
    "LineRange",
    "Patch",
    "PatchError",
    "TruthError",
    "answer_column",
    "apply_file",
    "apply_patch",
    "hunk_targets",
    "line_ranges",
    "parse_patch",
    "searched_path",
    "target_column",
    "truth",
]
