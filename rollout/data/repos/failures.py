"""Why a repository is not there."""

from __future__ import annotations

from enum import StrEnum

from fairbox.errors import FairboxError

__all__ = ["FailureKind", "RepoError"]


class FailureKind(StrEnum):
    """What kept a repository from being made."""

    TIMEOUT = "timeout"
    """It took longer than its deadline; every process of it was killed."""
    SOURCE = "source"
    """The source did not give it: not reachable, gone, refused, damaged. git's words are in the text."""
    MISSING = "missing"
    """The source was read, and has no such commit, or there is no such file."""
    PATCH = "patch"
    """The patch does not apply."""
    UNUSABLE = "unusable"
    """An archive or a folder holds what is no source tree: names that lead elsewhere, devices, too many files."""
    NO_ROOM = "no_room"
    """The store's bound of bytes is reached."""
    STORE = "store"
    """The store's own disk failed, or a mirror in it is damaged."""

    @property
    def may_pass(self) -> bool:
        """Whether trying again may help. Fetching is idempotent: what is there already is not fetched again."""
        return self in (FailureKind.TIMEOUT, FailureKind.SOURCE)


class RepoError(FairboxError):
    """A state of a repository can't be had; `kind` says why in one word, the text in a sentence."""

    def __init__(self, kind: FailureKind, text: str) -> None:
        super().__init__(text)
        self.kind = kind
