"""Code search: what a search should have found, from patches and the history of repositories.

`parse_patch` reads diffs; `truth` and `hunk_targets` say what they touch.
"""

from rollout.data.swe.patch import FilePatch, Hunk, Patch, PatchError, hunk_targets, parse_patch, target_column
from rollout.data.swe.truth import Changes, Dialect, FileChange, TruthError, truth

__all__ = [
    "Changes",
    "Dialect",
    "FileChange",
    "FilePatch",
    "Hunk",
    "Patch",
    "PatchError",
    "TruthError",
    "hunk_targets",
    "parse_patch",
    "target_column",
    "truth",
]
