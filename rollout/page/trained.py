"""The trainer's logprobs of a step, for rows of its dump.

Invariants: memory holds a place for each line, and one line; a row gets those of its own id, whatever else the file
holds, and none over its own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, Self

from fairbox.errors import FairboxError
from rollout.dump import TRAINER
from rollout.viewer.rows.index import read_lines
from rollout.viewer.rows.summary import parse_line

_ID = re.compile(rb'\{"request_id": "([^"\\]{1,200})"')


class TrainerLines:
    """`with TrainerLines(path) as lines: lines.join(record)`; without such a file there is nothing to join. Raises
    FairboxError for one that can't be read."""

    def __init__(self, path: Path) -> None:
        self._places: dict[bytes, tuple[int, int]] = {}
        self._path = path
        self._file: BinaryIO | None = None

    def __enter__(self) -> Self:
        if not self._path.is_file():
            return self
        try:
            self._file = self._path.open("rb")
            for line in read_lines(self._file):
                if line.data is not None and (found := _ID.match(line.data)):
                    self._places[found[1]] = (line.offset, line.size)
        except OSError as error:
            self.__exit__()
            raise FairboxError(f"{self._path}: {error.strerror or error}") from None
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def join(self, record: dict[str, Any]) -> None:
        """Puts the lists beside the engine's logprobs."""
        place = self._places.get(str(record.get("request_id")).encode("utf-8", "replace"))
        if self._file is None or place is None:
            return
        self._file.seek(place[0])
        found = parse_line(self._file.read(place[1]))
        if isinstance(found, dict):
            ours, theirs = record.get("earlier"), found.get("earlier")
            if isinstance(ours, list) and isinstance(theirs, list):
                for part, line in zip(ours, theirs, strict=False):
                    _put(part, line)
            _put(record, found)


def _put(part: Any, line: Any) -> None:
    if isinstance(part, dict) and isinstance(line, Mapping) and TRAINER in line:
        part.setdefault(TRAINER, line[TRAINER])
