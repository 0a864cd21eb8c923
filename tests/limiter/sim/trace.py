"""Record of events, in order: always hashed, printed on demand. Equal hashes mean equal histories."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

from google.protobuf.message import Message


class Trace:
    """One history."""

    def __init__(self, now: Callable[[], float], show: Callable[[str], None] | None = None) -> None:
        self._now = now
        self._show = show
        self._hash = hashlib.sha256()

    def event(self, text: str) -> None:
        """Something that is told in words, without anything that differs between two runs of a seed."""
        line = f"{self._now():.6f} {text}"
        self._hash.update(line.encode())
        if self._show is not None:
            self._show(line)

    def message(self, source: str, target: str, message: Any) -> None:
        """Something that has arrived. Sessions' ids are random, so of frames only the size counts."""
        size = message.ByteSize() if isinstance(message, Message) else len(str(message))
        self._hash.update(f"{self._now():.6f} {source} {target} {size}".encode())
        if self._show is not None:
            self._show(f"{self._now():.6f} {source} > {target}: {' '.join(str(message).split())}")

    def digest(self) -> str:
        """The hash so far."""
        return self._hash.hexdigest()
