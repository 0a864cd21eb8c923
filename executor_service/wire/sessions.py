"""Checks requests about sessions, and cells, field by field; pure, and done before any work.

The rules that cells and programs share are in `validation`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from executor_service.languages import canonical
from executor_service.model import InputFile, Limits
from executor_service.v1 import executor_pb2 as pb
from executor_service.wire.programs import from_message
from executor_service.wire.validation import (
    MAX_ID,
    MAX_SESSION_ID,
    SESSION_LANGUAGES,
    LimitPolicy,
    check_environment,
    check_files,
    check_lengths,
    check_profile,
    check_room,
    check_user,
)
from fairbox.errors import FieldError, FieldErrors, shown


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
    image: str = ""
    """Name or id of the image that is the root of a shell; empty: none."""
    user: str = ""
    """User of the image that the shell runs as; empty: the image's own."""
    owner: str = ""
    tenant: str = ""
    request_id: str = ""


DEFAULT_IDLE_TTL_S = 600.0
MAX_IDLE_TTL_S = 86_400.0
MAX_BRANCHES = 64
DEFAULT_PAGE, MAX_PAGE = 100, 1000
_MAX_TOKEN = 18
"""Digits of the number that a page ends with."""


def validate_session(
    request: pb.CreateSessionRequest, *, installed: Collection[str], policy: LimitPolicy, profiles: Collection[str]
) -> SessionRequest:
    """The valid request. FieldErrors with every field that is not acceptable."""
    found: list[FieldError] = []
    language = canonical(request.language)
    offered = [each for each in SESSION_LANGUAGES if each in installed] if not request.image else ["bash"]
    if language not in offered:
        sessions = "sessions in images" if request.image else "sessions"
        problem = f"is {shown(language)}, must be {' or '.join(offered)}: {sessions} have no other"
        found.append(FieldError("language", problem))
    limits = policy.resolve(request.limits, found)
    ttl_s = request.idle_ttl_s
    if not math.isfinite(ttl_s) or not 0 <= ttl_s <= MAX_IDLE_TTL_S:
        found.append(FieldError("idle_ttl_s", f"is {ttl_s:g}, must be from 0 to {MAX_IDLE_TTL_S:g} seconds"))
    files = check_files(found, request.files)
    check_room(found, files, limits)
    check_environment(found, request.env)
    check_profile(found, request.profile, language, profiles)
    check_lengths(found, request, "owner", "tenant", "request_id", "workspace_id", "image")
    if request.image and request.workspace_id:
        found.append(FieldError("image", "is set, must not be with a workspace_id"))
    check_user(found, request.user, lacks="" if request.image else "an image")
    if found:
        raise FieldErrors(found)
    return from_message(
        SessionRequest,
        request,
        language=language,
        limits=limits,
        idle_ttl_s=ttl_s or DEFAULT_IDLE_TTL_S,
        files=files,
        env=MappingProxyType(dict(request.env)),
    )


def validate_branch(request: pb.BranchSessionRequest) -> int:
    """Number of the branches. FieldErrors with every field that is not acceptable."""
    found: list[FieldError] = []
    _session_id(found, request.session_id)
    count = request.count or 1
    if count > MAX_BRANCHES:
        found.append(FieldError("count", f"is {count}, must be at most {MAX_BRANCHES}"))
    if len(request.owners) not in (0, count):
        found.append(
            FieldError("owners", f"has {len(request.owners)} entries, must have {count}, one a branch, or none")
        )
    for index, owner in enumerate(request.owners[:MAX_BRANCHES]):
        if len(owner) > MAX_ID:
            found.append(FieldError(f"owners[{index}]", f"has {len(owner)} characters, must have at most {MAX_ID}"))
    check_lengths(found, request, "request_id")
    if found:
        raise FieldErrors(found)
    return count


def validate_session_id(request: pb.DeleteSessionRequest | pb.SnapshotSessionRequest) -> str:
    """The id of the session. FieldErrors."""
    found: list[FieldError] = []
    _session_id(found, request.session_id)
    if found:
        raise FieldErrors(found)
    return request.session_id


def validate_list(request: pb.ListSessionsRequest) -> tuple[int, int]:
    """Size of the page, and the number that the one before it ended with. FieldErrors with every field that is not
    acceptable."""
    found: list[FieldError] = []
    check_lengths(found, request, "owner", "tenant")
    size = request.page_size or DEFAULT_PAGE
    if size > MAX_PAGE:
        found.append(FieldError("page_size", f"is {size}, must be at most {MAX_PAGE}"))
    token = request.page_token or "0"
    if len(token) > _MAX_TOKEN or not (token.isascii() and token.isdigit()):
        found.append(FieldError("page_token", f"is {shown(token)}, must be as the previous page gave it"))
    if found:
        raise FieldErrors(found)
    return size, int(token)


def _session_id(found: list[FieldError], session_id: str) -> None:
    if not session_id:
        found.append(FieldError("session_id", "is empty, must be the id of a session"))
    elif len(session_id) > MAX_SESSION_ID:
        found.append(FieldError("session_id", f"has {len(session_id)} characters, must have at most {MAX_SESSION_ID}"))
