"""Checkpoints: folders that are whole or not there.

`{folder}/step-000010/` holds `state.pt` (tensors and plain values, read without running code), `config.json` and
`checksum.json`; their form is the same however many processes train. It is written beside its place, flushed to the
disk and renamed into it, so that a crash at any moment leaves the one before as the newest; a folder whose contents do
not have their checksum is passed over.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch

from fairbox.errors import FairboxError

_LOG = logging.getLogger("fairbox.training")
_STATE, _CONFIG, _ROLLOUTS, _CHECKSUM = "state.pt", "config.json", "rollouts.json", "checksum.json"
_PARTS = (_STATE, _CONFIG, _ROLLOUTS)
_NAME = re.compile(r"step-(\d+)$")


class CheckpointError(FairboxError):
    """A checkpoint can't be written or read. The text names the folder and the reason."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint that is whole."""

    path: Path
    step: int
    config: dict[str, Any]
    rollouts: dict[str, Any]
    """State of the rollouts, as their `state()` gave it: the groups still to be played or trained on."""

    @property
    def state_path(self) -> Path:
        """The file that `state` reads."""
        return self.path / _STATE

    @property
    def state(self) -> dict[str, Any]:
        """Everything that the next step depends on, read anew."""
        return read_state(self.state_path, mmap=False)


class CheckpointStore:
    """The checkpoints of a run, of which the newest `keep` stay."""

    def __init__(self, folder: Path, *, keep: int) -> None:
        self._folder = folder
        self._keep = keep

    def save(
        self,
        step: int,
        state: Mapping[str, Any] | Callable[[Path], None],
        config: Mapping[str, Any],
        *,
        rollouts: Mapping[str, Any] | None = None,
        name: str = "step",
    ) -> Path:
        """Writes a checkpoint and removes the oldest beyond `keep`. One with another `name` than `step` is never
        resumed from or removed. If the state is not in this process, `state` is a function that writes it to a path, as
        `torch.save` does; it may raise OSError.

        Raises CheckpointError, and leaves nothing of it, if the disk is full or can't be written.
        """
        target = self._folder / f"{name}-{step:06d}"
        beside = self._folder / f".{target.name}.part"
        try:
            shutil.rmtree(beside, ignore_errors=True)
            beside.mkdir(parents=True)
            _write(beside, state, config, rollouts or {})
            if target.exists():  # of a run that was told to go on from an earlier one
                shutil.rmtree(target)
            beside.rename(target)
            _flush(self._folder)
        except (OSError, RuntimeError) as error:  # torch reports a failed write as a RuntimeError
            with contextlib.suppress(OSError):
                shutil.rmtree(beside, ignore_errors=True)
            raise CheckpointError(f"{target}: the checkpoint can't be written: {write_failure(error)}") from None
        if name == "step":
            self._thin(step)
        return target

    def latest(self) -> Checkpoint | None:
        """The newest checkpoint that is whole; None without one. Removes what interrupted writes left."""
        for part in self._folder.glob(".*.part"):
            shutil.rmtree(part, ignore_errors=True)
        for step, path in reversed(self._all()):
            try:
                return Checkpoint(path, step, *_checked(path))
            except CheckpointError as error:
                _LOG.warning("%s; the one before it is tried", error)
        return None

    def _all(self) -> list[tuple[int, Path]]:
        found = ((_NAME.match(path.name), path) for path in self._folder.glob("step-*"))
        return sorted((int(match[1]), path) for match, path in found if match)

    def _thin(self, newest: int) -> None:
        """Removes those beyond `keep`, and those after `newest`, which a run that resumed before a damaged one left."""
        every = self._all()
        past = [path for step, path in every if step <= newest]
        for path in [*past[: -self._keep], *(path for step, path in every if step > newest)]:
            shutil.rmtree(path, ignore_errors=True)


def write_failure(error: BaseException) -> str:
    """Reason that a write failed, in the system's own words even if torch put others in their place."""
    found: BaseException | None = error
    while found is not None:
        if isinstance(found, OSError) and found.strerror:
            return found.strerror
        found = found.__context__
    return str(error).partition("\n")[0] or type(error).__name__


def _write(
    folder: Path,
    state: Mapping[str, Any] | Callable[[Path], None],
    config: Mapping[str, Any],
    rollouts: Mapping[str, Any],
) -> None:
    if isinstance(state, Mapping):
        with (folder / _STATE).open("wb") as file:
            torch.save(dict(state), file)
    else:
        state(folder / _STATE)
    for name, values in ((_CONFIG, config), (_ROLLOUTS, rollouts)):
        (folder / name).write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")
    sums = {name: _digest(folder / name) for name in _PARTS}
    (folder / _CHECKSUM).write_text(json.dumps(sums) + "\n", encoding="utf-8")
    for name in (*_PARTS, _CHECKSUM):
        _flush(folder / name)
    _flush(folder)


def _checked(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Settings and rollouts of a checkpoint, all of which is as it was written. Raises CheckpointError."""
    try:
        sums = json.loads((folder / _CHECKSUM).read_text(encoding="utf-8"))
        for name in _PARTS:
            if _digest(folder / name) != sums.get(name):
                raise CheckpointError(f"{folder / name}: is damaged: it does not have its checksum")
        plain = [json.loads((folder / name).read_text(encoding="utf-8")) for name in (_CONFIG, _ROLLOUTS)]
    except (OSError, ValueError, AttributeError) as error:
        raise CheckpointError(f"{folder}: the checkpoint can't be read: {error}") from None
    read_state(folder / _STATE, mmap=True)
    return plain[0], plain[1]


def read_state(path: Path, *, mmap: bool) -> dict[str, Any]:
    """The state in a checkpoint's file; with `mmap` its tensors are read when they are looked at. Raises
    CheckpointError."""
    try:
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True, mmap=mmap)
    except (OSError, ValueError, RuntimeError, UnpicklingError) as error:
        raise CheckpointError(f"{path.parent}: the checkpoint can't be read: {error}") from None
    return state


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _flush(path: Path) -> None:
    """Flushes a file to the disk: otherwise a rename may survive a power cut that the contents did not."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
