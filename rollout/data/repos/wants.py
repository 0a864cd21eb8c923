"""What is wanted of a repository: a commit of some source, or a commit with a patch applied, and where it comes from.

A want is named by a digest of what decides its content, so that the same want has the same name on every machine and in
every run. Not everything that decides is known beforehand: the default branch of a source is what it is when it is
fetched, and stays that in this store.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairbox.errors import FieldError, FieldErrors

__all__ = ["Want", "check_template", "row_want"]

_REPO = re.compile(r"\w[\w.+-]*(/\w[\w.+-]*){0,3}", re.ASCII)
_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_FIELD = re.compile(r"\{([^{}]*)\}")
_FIELDS = ("repo", "owner", "name", "commit", "instance_id")
_TAKEN = (".git", ".lock")
"""Endings of folders of the store itself."""


@dataclass(frozen=True, slots=True)
class Want:
    """One state of one repository. Raises FieldErrors for what can't be."""

    repo: str
    """owner/name; names the mirror."""
    source: str
    """A URL (`https://`, `http://`, `file://`), or the path of a repository or a bundle; paths become absolute."""
    commit: str | None = None
    """Full hash; None: the default branch."""
    patch: str = ""
    """Applied on top. The result is a commit without a parent."""

    def __post_init__(self) -> None:
        found = []
        parts = self.repo.split("/")
        if not _REPO.fullmatch(self.repo) or any(part.endswith(_TAKEN) for part in parts):
            found.append(FieldError("repo", f"is {self.repo[:80]!r}, must be like owner/name"))
        if self.commit is not None and not _COMMIT.fullmatch(self.commit):
            problem = f"is {self.commit[:80]!r}, must be the whole hash of a commit, in small letters, or null"
            found.append(FieldError("base_commit", problem))
        if not self.source or not self.source.isprintable() or self.source.startswith("-"):
            found.append(FieldError("source", f"is {self.source[:80]!r}, must be a URL or a path"))
        if "\0" in self.patch:
            found.append(FieldError("patch", "holds a null character"))
        if found:
            raise FieldErrors(found)
        if "://" not in self.source:
            # One name for one place, whichever folder it is asked for from.
            object.__setattr__(self, "source", str(Path(self.source).absolute()))

    def digest(self) -> str:
        """32 hex digits. What they are made of must not change: stores that are there name their states so."""
        decides = [self.commit or self.source, "", self.patch]
        return hashlib.sha256(json.dumps(decides).encode("utf-8", "surrogatepass")).hexdigest()[:32]

    @property
    def base(self) -> Want:
        """The same without the patch."""
        return Want(self.repo, self.source, self.commit)


def check_template(template: str) -> None:
    """FieldErrors unless every name in braces is one that rows have."""
    unknown = [name for name in _FIELD.findall(template) if name not in _FIELDS]
    if unknown or "{" in _FIELD.sub("", template):
        allowed = ", ".join(f"{{{name}}}" for name in _FIELDS)
        raise FieldErrors([FieldError("source", f"is {template!r}, may have of names in braces only {allowed}")])


def row_want(row: Mapping[str, Any], template: str) -> Want:
    """What a row of code search data needs: its `repo`, `base_commit`, and `patch` where `use_patch` says so.

    `template` is the source, with `{repo}`, `{owner}`, `{name}`, `{commit}` and `{instance_id}` filled in from the row.
    Raises FieldErrors.
    """
    repo, commit, patched = row.get("repo"), row.get("base_commit"), row.get("use_patch") or False
    found = []
    if not isinstance(repo, str):
        found.append(FieldError("repo", f"is {repo!r}, must be a text like owner/name"))
    if commit is not None and not isinstance(commit, str):
        found.append(FieldError("base_commit", f"is {commit!r}, must be a text or null"))
    if not isinstance(patched, bool):
        found.append(FieldError("use_patch", f"is {patched!r}, must be true or false"))
    elif patched and not isinstance(row.get("patch"), str):
        found.append(FieldError("patch", f"is {row.get('patch')!r}, must be a text, because use_patch is true"))
    if found or not isinstance(repo, str):
        raise FieldErrors(found)
    owner, _, name = repo.rpartition("/")
    words = {"repo": repo, "owner": owner, "name": name, "commit": commit or "HEAD"}
    words["instance_id"] = str(row.get("instance_id") or "")
    source = _FIELD.sub(lambda match: words.get(match[1], match[0]), template)
    if any(".." in word or word.startswith("/") for word in words.values()):
        raise FieldErrors([FieldError("repo", f"is {repo!r}, must not lead to another folder")])
    return Want(repo, source, commit or None, row["patch"] if patched else "")
