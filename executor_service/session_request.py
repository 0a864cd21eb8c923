"""What is asked of sessions, independent of gRPC: valid, with every limit set."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from executor_service.model import InputFile, Limits

__all__ = ["BranchRequest", "ListRequest", "SessionRequest"]


@dataclass(frozen=True, slots=True)
class SessionRequest:
    """A session to be made."""

    language: str
    limits: Limits
    """Memory, processes, open files, file and disk bytes are those of the session; the rest those of a cell that names
    none."""
    idle_ttl_s: float
    profile: str = ""
    files: tuple[InputFile, ...] = ()
    env: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    workspace_id: str = ""
    owner: str = ""
    tenant: str = ""
    request_id: str = ""


@dataclass(frozen=True, slots=True)
class BranchRequest:
    """A session to be forked `count` times."""

    session_id: str
    count: int
    owners: tuple[str, ...] = ()
    """One for each branch, or none."""
    request_id: str = ""


@dataclass(frozen=True, slots=True)
class ListRequest:
    """A page of sessions."""

    owner: str
    tenant: str
    size: int
    after: int
    """Number that the previous page ended with."""
