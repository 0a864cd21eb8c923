"""Checks that repositories, with everything that they need, lie below the roots that the operator named.

A git folder can point elsewhere in many ways: a `.git` file, a common folder, alternates, links. This module follows
all of them, and each must end below a root, or a repository would give its reader objects of any other on this host.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

_BLOCK = 4096
_MOST_POINTER = 4096
_MOST_ALTERNATES = 16


class SourceError(Exception):
    """The source is not acceptable; the text goes behind the name of the field."""


def below_a_root(path: str, roots: Sequence[str], *, what: str = "") -> tuple[str, str]:
    """The root, and the real path. SourceError unless `path` exists below one of the roots."""
    said = what or f"is {path!r}, which"
    if not roots:
        raise SourceError(f"{said} can't be used: this server has no workspace_roots")
    if not os.path.isabs(path) or "\0" in path:
        raise SourceError(f"{said} is not an absolute path")
    try:
        real = os.path.realpath(path, strict=True)
    except OSError as error:
        raise SourceError(f"{said} can't be read: {error.strerror}") from None
    for root in roots:
        top = os.path.realpath(root)
        if real == top or real.startswith(top.rstrip("/") + "/"):
            return root, real
    raise SourceError(f"{said} is not below one of this server's workspace_roots")


def git_folder(path: str, roots: Sequence[str]) -> str:
    """The git folder of the repository at `path`, when it and all that it points to lies below the roots."""
    _, real = below_a_root(path, roots)
    dot_git = os.path.join(real, ".git")
    if os.path.isdir(dot_git):
        folder = os.path.realpath(dot_git)
    elif os.path.isfile(dot_git):
        text = _pointer(dot_git, roots)
        if not text.startswith("gitdir: "):
            raise SourceError(f"is {path!r}, whose .git is neither a folder nor a pointer to one")
        folder = os.path.realpath(os.path.join(real, text.removeprefix("gitdir: ")))
    elif os.path.isfile(os.path.join(real, "HEAD")) and os.path.isdir(os.path.join(real, "objects")):
        folder = real
    else:
        raise SourceError(f"is {path!r}, which is no git repository")
    below_a_root(folder, roots, what=f"is {path!r}, whose git folder")
    common = folder
    if os.path.lexists(os.path.join(folder, "commondir")):
        common = os.path.join(folder, _pointer(os.path.join(folder, "commondir"), roots))
        below_a_root(common, roots, what=f"is {path!r}, whose common folder")
    _check_objects(path, os.path.join(common, "objects"), roots, [])
    return folder


def _check_objects(path: str, objects: str, roots: Sequence[str], seen: list[str]) -> None:
    """No object, and no alternate, lies elsewhere."""
    _, real = below_a_root(objects, roots, what=f"is {path!r}, whose objects folder")
    if real in seen:
        return
    seen.append(real)
    if len(seen) > _MOST_ALTERNATES:
        raise SourceError(f"is {path!r}, which has more than {_MOST_ALTERNATES} alternates")
    for folder in (real, *(entry.path for entry in os.scandir(real) if entry.is_dir(follow_symlinks=False))):
        for entry in os.scandir(folder):
            if entry.is_symlink():
                raise SourceError(f"is {path!r}, which has a link among its objects")
    alternates = os.path.join(real, "info", "alternates")
    if os.path.isfile(alternates):
        for line in _pointer(alternates, roots).splitlines():
            if line and not line.startswith("#"):
                _check_objects(path, os.path.join(real, line), roots, seen)


def _pointer(path: str, roots: Sequence[str]) -> str:
    below_a_root(path, roots, what=f"has {os.path.basename(path)!r}, which")
    with open(path, encoding="utf-8", errors="replace") as file:
        text = file.read(_MOST_POINTER + 1)
    if len(text) > _MOST_POINTER:
        raise SourceError(f"has {os.path.basename(path)!r}, which is too long")
    return text.strip()


def folder_size(path: str, most_entries: int) -> tuple[int, int]:
    """Bytes on disk below a folder, and files and folders. SourceError when there are too many."""
    disk = count = 0
    folders = [path]
    while folders:
        for entry in os.scandir(folders.pop()):
            count += 1
            if count > most_entries:
                raise SourceError(f"has more than {most_entries} files")
            facts = entry.stat(follow_symlinks=False)
            disk += -(-facts.st_size // _BLOCK) * _BLOCK  # blocks are counted when they are written, which is later
            if entry.is_dir(follow_symlinks=False):
                folders.append(entry.path)
    return disk, count
