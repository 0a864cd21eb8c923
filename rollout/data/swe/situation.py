"""Which tree a patch speaks of, and from which side: the tree that is searched, and the patch that makes it good."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum

from rollout.data.swe.apply import ApplyError, apply_patch
from rollout.data.swe.patch import Patch
from rollout.data.swe.trees import Tree

__all__ = ["Evidence", "Situation", "situations"]


class Evidence(IntEnum):
    """Why a tree is taken for the one that a patch was made of; more is better."""

    UNDONE = 1
    """The patch is in the tree: its reverse fits, at every line. A later release, with the patch taken out."""
    FITS = 2
    """The patch fits at every line that it names."""
    HASHES = 3
    """It fits, and says the hashes of the files that it was made of, which these have."""


@dataclass(frozen=True, slots=True)
class Situation:
    """What an agent searches, and what it should have found."""

    read: Callable[[str], str | None]
    """Files of the tree that is searched."""
    fix: Patch
    """Makes that tree good."""
    source: str
    """The name of the tree that it was made of."""
    evidence: Evidence


def situations(patch: Patch, trees: Sequence[Tree], *, use_patch: bool, undo: bool) -> list[Situation]:
    """The likeliest of the trees, all of the same evidence. Raises ApplyError where none fits, and TreeError.

    `use_patch`: the patch makes the defect, and the tree is the one without it. `undo`: trees may have the patch
    already, and it is taken out.
    """
    found: list[Situation] = []
    failure: ApplyError | None = None
    for tree in trees:
        try:
            found.append(_situation(patch, tree, use_patch, undo))
        except ApplyError as error:
            failure = ApplyError(f"{tree.name}: {error}")
    if not found:
        assert failure is not None, "needs a tree"
        raise failure
    best = max(each.evidence for each in found)
    return [each for each in found if each.evidence is best]


def _situation(patch: Patch, tree: Tree, use_patch: bool, undo: bool) -> Situation:
    try:
        after = apply_patch(patch, tree.read)
    except ApplyError as refused:
        if not undo:
            raise
        try:
            before = apply_patch(patch.reversed(), tree.read)
        except ApplyError:
            raise refused from None
        if use_patch:
            return Situation(tree.read, patch.reversed(), tree.name, Evidence.UNDONE)
        return Situation(_over(before, tree), patch, tree.name, Evidence.UNDONE)
    evidence = Evidence.HASHES if _hashes_agree(patch, tree) else Evidence.FITS
    if use_patch:
        return Situation(_over(after, tree), patch.reversed(), tree.name, evidence)
    return Situation(tree.read, patch, tree.name, evidence)


def _over(changed: dict[str, str | None], tree: Tree) -> Callable[[str], str | None]:
    return lambda path: changed[path] if path in changed else tree.read(path)


def _hashes_agree(patch: Patch, tree: Tree) -> bool:
    """Whether every file that the patch starts from has the hash that it says, and there is one at least."""
    agreed = 0
    for file in patch.files:
        if file.old_path is None:
            continue
        source = tree.read(file.old_path)
        if file.old_blob is None or source is None or not _blob(source).startswith(file.old_blob):
            return False
        agreed += 1
    return agreed > 0


def _blob(text: str) -> str:
    content = text.encode("utf-8", "surrogateescape")
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()
