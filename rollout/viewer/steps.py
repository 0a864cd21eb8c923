"""The dumps of a folder, one for each step, and their indexes.

Invariants: steps are ordered by number, whatever their names' lengths, and files without a number follow by name; at
most `MAX_OPEN` indexes are held, the least recently used ones are dropped and are built anew when they are needed.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path

from fairbox.errors import ConfigError
from rollout.viewer.index import StepFile

__all__ = ["MAX_OPEN", "DumpFolder", "Step"]

MAX_OPEN = 8
"""Indexes that are held; one of 100,000 rows takes about 100 MB."""
SUFFIX = ".jsonl"


@dataclass(frozen=True, slots=True)
class Step:
    """One file of a dump."""

    path: Path

    @property
    def label(self) -> str:
        """The file's name without its suffix: for a training's dump the number of its step."""
        return self.path.name.removesuffix(SUFFIX)

    @property
    def order(self) -> tuple[bool, int, str]:
        """Numbers by size, then names."""
        is_number = self.label.isascii() and self.label.isdigit()
        return (not is_number, int(self.label) if is_number else 0, self.label)


class DumpFolder:
    """The dumps below `path`, a folder with `{step}.jsonl` files, or one such file. Raises ConfigError when it is
    neither; an empty folder is one whose first step is still to come. May be used from any thread."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._is_file = path.is_file()
        self._lock = threading.Lock()
        self._open: OrderedDict[Path, StepFile] = OrderedDict()
        self.steps: tuple[Step, ...] = ()
        if not self._is_file and not path.is_dir():
            raise ConfigError(f"path is {str(path)!r}, which is neither a folder nor a file")
        self.refresh()
        if not self.steps:
            self._refuse_parent_of_runs()

    def refresh(self) -> tuple[Step, ...]:
        """Looks for new steps. A folder that can't be read keeps the steps that it had."""
        if self._is_file:
            self.steps = (Step(self.path),)
            return self.steps
        try:
            paths = [path for path in self.path.iterdir() if path.suffix == SUFFIX and path.is_file()]
        except OSError:
            return self.steps
        self.steps = tuple(sorted(map(Step, paths), key=lambda step: step.order))
        return self.steps

    def named(self, label: str) -> Step | None:
        """The step of that label."""
        return next((step for step in self.steps if step.label == label), None)

    def open(self, step: Step) -> StepFile:
        """Its index, which may have to be built: `advance()` it until it is complete."""
        with self._lock:
            file = self._open.get(step.path)
            if file is None:
                file = self._open[step.path] = StepFile(step.path)
            self._open.move_to_end(step.path)
            while len(self._open) > MAX_OPEN:
                self._open.popitem(last=False)
            return file

    def _refuse_parent_of_runs(self) -> None:
        try:
            runs = [folder for folder in self.path.iterdir() if folder.is_dir() and any(folder.glob("*" + SUFFIX))]
            newest = max(runs, key=lambda folder: folder.stat().st_mtime, default=None)
        except OSError as error:
            raise ConfigError(f"path is {str(self.path)!r}: {error.strerror or error}") from None
        if newest is not None:
            raise ConfigError(
                f"path is {str(self.path)!r}, which holds {len(runs)} runs and no step itself; the newest is {newest}"
            )
