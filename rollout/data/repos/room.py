"""How many bytes the store may still take."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["Room", "folder_bytes"]

_FRESH_S = 30.0
"""The finished repositories are measured again after so long: other processes write to the store too."""


class Room:
    """What is finished, and what grows now in this process. What other processes are making counts when it is done."""

    def __init__(self, finished: Path, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self._finished = finished
        self._measured = (-_FRESH_S, 0)
        self._grown: dict[Path, int] = {}

    @contextmanager
    def watching(self, place: Path) -> Iterator[Growth]:
        """For one that writes below `place`."""
        growth = Growth(self, place)
        self._grown[place] = 0
        try:
            yield growth
        finally:
            del self._grown[place]
            self._measured = (-_FRESH_S, 0)

    def left(self) -> int:
        """Bytes; negative when there are too many."""
        at, size = self._measured
        if time.monotonic() - at > _FRESH_S:
            size = folder_bytes(self._finished)
            self._measured = (time.monotonic(), size)
        return self.most_bytes - size - sum(self._grown.values())

    def grew(self, place: Path, by: int) -> None:
        self._grown[place] = by


class Growth:
    """What one fetch adds; `full` is True once it was too much."""

    def __init__(self, room: Room, place: Path) -> None:
        self.full = False
        self._room = room
        self._place = place
        self._began = folder_bytes(place)

    def problem(self) -> str | None:
        """Why it must end, for whoever runs git."""
        self._room.grew(self._place, folder_bytes(self._place) - self._began)
        self.full = self.full or self._room.left() <= 0
        return f"the store's {self._room.most_bytes} bytes are used up" if self.full else None


def folder_bytes(folder: Path) -> int:
    """Bytes of the files below a folder. What goes meanwhile counts as nothing."""
    size = 0
    folders = [os.fspath(folder)]
    while folders:
        with contextlib.suppress(OSError), os.scandir(folders.pop()) as found:
            for entry in found:
                with contextlib.suppress(OSError):
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.path)
                    else:
                        size += entry.stat(follow_symlinks=False).st_size
    return size
