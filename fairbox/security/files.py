"""Small files that may change while a program runs: secrets, certificates.

A mounted Secret is swapped by a symbolic link, which watches of files miss and times of files hide: contents are
compared. Invariants: no thread and no task; a look reads the files at most once in `every` seconds, and only when
somebody asks; a file is never read beyond its bound. Reading blocks: the files are small and local.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from fairbox.clock import Clock, MonotonicClock
from fairbox.errors import ConfigError

__all__ = ["FileSet"]

_EVERY_S = 1.0
"""Soon enough for whoever rotates a secret, and next to nothing for the disk."""


class FileSet:
    """Files that are used together. `files` are (setting, path)."""

    def __init__(
        self, files: Sequence[tuple[str, str]], *, max_bytes: int, clock: Clock | None = None, every: float = _EVERY_S
    ) -> None:
        self._files = tuple(files)
        self._max_bytes = max_bytes
        self._clock = clock or MonotonicClock()
        self._every = every
        self._seen: bytes | None = None
        self._looked = float("-inf")

    def look(self) -> tuple[bytes, ...] | None:
        """The contents, where they differ from those of the last look; None: they don't, or it is too early to know.
        ConfigError, naming the setting, for a file that can't be read."""
        now = self._clock.now()
        if now - self._looked < self._every:
            return None
        seen, self._looked, self._seen = self._seen, now, None  # what can't be read is news when it can be read again
        contents = tuple(self._read(setting, path) for setting, path in self._files)
        self._seen = hashlib.sha256(b"".join(hashlib.sha256(content).digest() for content in contents)).digest()
        return None if self._seen == seen else contents

    def _read(self, setting: str, path: str) -> bytes:
        try:
            with Path(path).open("rb") as file:
                content = file.read(self._max_bytes + 1)
        except OSError as error:
            raise ConfigError(f"{setting} is {path!r}, which can't be read: {error.strerror or error}") from None
        if len(content) > self._max_bytes:
            raise ConfigError(f"{setting} is {path!r}, which has more than {self._max_bytes} bytes")
        return content
