"""The writable folder of one use where there are no mounts: made with a name that nobody can guess, removed afterwards.

Invariants: a folder is used once; removing follows no link, needs three descriptors however deep the tree is, and goes
on past folders whose modes forbid it; the process that removes learns the names of files, so a child does it.
"""

from __future__ import annotations

import os
import stat

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_MODE = stat.S_IRWXU
WORK, TEMPORARY, WORKSPACE = "work", "tmp", "workspace"
"""Folders of a use that its program may write to."""


def make(base: str, owner: int | None) -> str:
    """A new folder below `base` with empty folders, which belong to `owner` (None: to us)."""
    path = f"{base}/{os.urandom(16).hex()}"
    os.mkdir(path, 0o711)
    for name in (WORK, TEMPORARY, WORKSPACE):
        os.mkdir(f"{path}/{name}", 0o700)
        if owner is not None:
            os.chown(f"{path}/{name}", owner, owner)
    return path


def remove(path: str) -> None:
    """Removes the folder and everything in it. Nobody may be at work in it any more."""
    top = os.open(path, _FOLDER)
    try:
        while _flatten(top):
            pass
    finally:
        os.close(top)
    os.rmdir(path)


def _flatten(top: int) -> bool:
    """Removes the files of every folder in `top` and lifts the folders in them into `top`. Whether there were any."""
    folders = _clear(top)
    for name in folders:
        os.chmod(name, _MODE, dir_fd=top)
        below = os.open(name, _FOLDER, dir_fd=top)
        for number, inner in enumerate(_clear(below)):
            # A folder that may not be written can't be moved: `..` in it would change.
            os.chmod(inner, _MODE, dir_fd=below)
            os.rename(inner, f"{os.urandom(8).hex()}-{number}", src_dir_fd=below, dst_dir_fd=top)
        os.close(below)
        os.rmdir(name, dir_fd=top)
    return bool(folders)


def _clear(folder: int) -> list[str]:
    """Unlinks what is not a folder; returns the names of the folders."""
    folders = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                folders.append(entry.name)
            else:
                os.unlink(entry.name, dir_fd=folder)
    return folders
