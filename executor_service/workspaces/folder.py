"""The folder that workspaces are kept in: what is finished, what is being made, and what is left of a former life.

    lock                  held by the server that uses the folder
    store-RANDOM/         all the rest:
        ready/NAME/       tree (the files) and facts.json; appears by one rename, when all of it is on disk
        making/N/         preparations, bundles for them, and what is being removed; emptied at start
        mirrors/          bare repositories of remotes

Invariants: one server uses a folder at a time; what is in `ready` is whole; a name in `ready` never changes its files;
no program can guess a path below the store (where nothing is mounted, a program of the server's user could change modes
of files whose path it knows). Everything here blocks: call it from a thread, but for the renames.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import shutil
import tempfile
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from fairbox.errors import ConfigError

if TYPE_CHECKING:
    from executor_service.workspaces.prepare.spec import Facts

_STORE = "store-"
BUNDLE = "all.bundle"
"""Name of a bundle in a folder of its own."""


class WorkspaceFolder:
    """`path` is empty for one below the folder for temporary files, which goes when it is closed."""

    def __init__(self, path: str) -> None:
        self._temporary = not path
        try:
            self.path = Path(path) if path else Path(tempfile.mkdtemp(prefix="fairbox-workspaces-"))
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.path = self.path.resolve()
            self._lock = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise ConfigError(f"workspace_dir is {path!r}, which can't be used: {error}") from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            raise ConfigError(f"workspace_dir is {path!r}, which another server uses") from None
        store = next(self.path.glob(f"{_STORE}*"), None) or self.path / (_STORE + secrets.token_hex(16))
        self.store = store.resolve()
        """Folder that all mounts are below."""
        self.ready, self._making, self._mirrors = (store / name for name in ("ready", "making", "mirrors"))
        try:
            for folder in (store, self.ready, self._making, self._mirrors):
                folder.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            os.close(self._lock)
            raise ConfigError(f"workspace_dir is {path!r}, which can't be used: {error}") from None
        self._numbers = count(1)

    def load(self) -> list[Facts]:
        """Removes what was not finished, and returns what was."""
        for leftover in self._making.iterdir():
            _remove(leftover)
        found = []
        for folder in self.ready.iterdir():
            try:
                facts: Facts = json.loads((folder / "facts.json").read_bytes())
                # A version that kept other facts has left what has to be made anew.
                if facts["folder"] != folder.name or not {"tenant", "source", "entries"} <= facts.keys():
                    raise ValueError(folder.name)
                found.append(facts)
            except (OSError, ValueError, KeyError, TypeError):
                self.discard(self.take_away(folder.name))
        return found

    def new(self) -> Path:
        """A path for a preparation; nothing is there."""
        return self._making / str(next(self._numbers))

    def stage(self, path: Path, bundle: bytes) -> None:
        """Writes a bundle to the new folder `path`, from where a sandbox can read it, whichever its uid."""
        path.mkdir()
        path.chmod(0o755)
        (path / BUNDLE).write_bytes(bundle)
        (path / BUNDLE).chmod(0o644)

    def mirror(self, key: str) -> Path:
        """Folder of a remote's mirror."""
        return self._mirrors / key

    def mirror_bytes(self) -> int:
        """Bytes on disk of all mirrors."""
        return sum(entry.stat().st_blocks * 512 for entry in self._mirrors.rglob("*") if not entry.is_symlink())

    def clear_mirrors(self) -> None:
        """Removes all mirrors; the next preparation of a remote fetches everything again."""
        for mirror in self._mirrors.iterdir():
            _remove(mirror)

    def finish(self, made: Path, name: str) -> None:
        """Makes a preparation, which is on disk already, a workspace. One rename: it is there as a whole or not at
        all, also after a power failure."""
        made.rename(self.ready / name)

    def take_away(self, name: str) -> Path:
        """Makes a workspace nothing but a folder that is to be discarded."""
        away = self.new()
        (self.ready / name).rename(away)
        return away

    def discard(self, path: Path) -> None:
        _remove(path)

    def close(self) -> None:
        if self._temporary:
            _remove(self.path)
        os.close(self._lock)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
