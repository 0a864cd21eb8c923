"""Turns a request for a workspace into a PrepareRequest, or says everything that is wrong with it, field by field."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from executor_service.v1 import executor_pb2 as pb
from executor_service.wire.validation import check_lengths
from fairbox.errors import FieldError, FieldErrors

DEFAULT_MOUNT_PATH = "/testbed"
_DEFAULT_IDLE_TTL_S = 3600.0
_MOST_IDLE_TTL_S = 30 * 86_400.0
_MAX_COMMIT = 256
_MAX_SOURCE = 4096
_MAX_MOUNT_PATH = 256
_MAX_BUNDLE = 64 << 20
"""As much as all files of a run."""
_COMMIT = re.compile(r"[\w][\w./+@-]*", re.ASCII)
_MOUNT_PATH = re.compile(r"(/[\w.+@-]+)+", re.ASCII)
_SCHEMES = ("https://", "http://", "git://")
_TAKEN = (
    *("/bin", "/boot", "/branches", "/dev", "/etc", "/lib", "/lib32", "/lib64", "/libx32", "/proc", "/run", "/sandbox"),
    *("/sbin", "/sys", "/tmp", "/usr", "/var"),  # noqa: S108 - a name to be refused
)
"""Paths that a root has already, or that programs expect to be what they are elsewhere."""

Kind = Literal["local", "bundle", "remote"]
_KINDS: dict[str, Kind] = {
    "local_path": "local",
    "bundle": "bundle",
    "remote_url": "remote",
}


@dataclass(frozen=True, slots=True)
class PrepareRequest:
    """A workspace to prepare; valid, as far as can be said without looking at the source."""

    kind: Kind
    source: str
    """Path or URL; empty for a bundle."""
    bundle: bytes = field(repr=False)
    commit: str
    mount_path: str
    idle_ttl_s: float
    tenant: str

    def digest(self) -> str:
        """Digest of what a workspace is made of and for, but for its commit: who has it has shown all of this. Blocks
        for as long as hashing a bundle takes."""
        bundle = hashlib.sha256(self.bundle).hexdigest()
        words = [self.tenant, self.kind, self.source, bundle, self.mount_path]
        return hashlib.sha256(json.dumps(words).encode()).hexdigest()


def check_prepare(
    request: pb.PrepareWorkspaceRequest, *, remotes: Sequence[str], visible: Sequence[str]
) -> PrepareRequest:
    """The valid request. FieldErrors with every field that is not acceptable.

    `remotes`: beginnings of URLs that may be fetched from. `visible`: folders of the host that programs see.
    """
    found: list[FieldError] = []
    name = request.WhichOneof("source") or ""
    value = getattr(request, name) if name else ""
    if not name:
        found.append(FieldError("source", f"is not set, must be one of {', '.join(_KINDS)}"))
    elif not value:
        found.append(FieldError(name, "is empty"))
    elif isinstance(value, str) and len(value.encode()) > _MAX_SOURCE:
        found.append(FieldError(name, f"has more than {_MAX_SOURCE} bytes"))
    elif name == "remote_url":
        _remote(found, value, remotes)
    elif name == "bundle" and len(value) > _MAX_BUNDLE:
        found.append(FieldError(name, f"has {len(value)} bytes, must have at most {_MAX_BUNDLE}"))
    elif name != "bundle" and not value.startswith("/"):
        found.append(FieldError(name, f"is {value!r}, must be an absolute path"))
    _commit(found, request.commit)
    mount_path = request.mount_path or DEFAULT_MOUNT_PATH
    if problem := _mount_problem(mount_path, visible):
        found.append(FieldError("mount_path", problem))
    idle = request.idle_ttl_s
    if not math.isfinite(idle) or not 0 <= idle <= _MOST_IDLE_TTL_S:
        found.append(FieldError("idle_ttl_s", f"is {idle}, must be from 0 to {_MOST_IDLE_TTL_S:g} seconds"))
    check_lengths(found, request, "tenant")
    if found:
        raise FieldErrors(found)
    return PrepareRequest(
        kind=_KINDS[name],
        source=value if isinstance(value, str) else "",
        bundle=value if isinstance(value, bytes) else b"",
        commit=request.commit,
        mount_path=mount_path,
        idle_ttl_s=idle or _DEFAULT_IDLE_TTL_S,
        tenant=request.tenant,
    )


def _remote(found: list[FieldError], url: str, remotes: Sequence[str]) -> None:
    if not remotes:
        found.append(FieldError("remote_url", "is set, but this server takes no remotes (remotes)"))
    elif not url.startswith(_SCHEMES) or not url.isprintable() or " " in url or "/../" in url:
        found.append(FieldError("remote_url", f"is {url!r}, must be a URL that begins with {', '.join(_SCHEMES)}"))
    elif not any(url.startswith(remote) for remote in remotes):
        found.append(FieldError("remote_url", f"is {url!r}, must begin with {' or '.join(remotes)}"))


def _commit(found: list[FieldError], commit: str) -> None:
    if not commit:
        found.append(FieldError("commit", "is empty, must be the hash of a commit or a reference"))
    elif len(commit) > _MAX_COMMIT or not _COMMIT.fullmatch(commit) or ".." in commit or "@{" in commit:
        found.append(FieldError("commit", f"is {commit[:64]!r}, must be the hash of a commit or a reference"))


def _mount_problem(path: str, visible: Sequence[str]) -> str | None:
    if len(path) > _MAX_MOUNT_PATH or not _MOUNT_PATH.fullmatch(path):
        return f"is {path[:64]!r}, must be an absolute path of letters, digits and any of _.+@-"
    if any(part in (".", "..") for part in path.split("/")):
        return f"is {path!r}, must not have a part '.' or '..'"
    for taken in (*_TAKEN, *visible):
        if path == taken or path.startswith(f"{taken}/") or taken.startswith(f"{path}/"):
            return f"is {path!r}, which would cover or be covered by {taken}"
    return None
