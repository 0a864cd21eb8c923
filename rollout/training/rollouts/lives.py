"""The lives of a training run: each start of its process is one, behind the checkpoint that it goes on from.

Trajectories that a rollout service plays outlive the process that asked for them. Some of those that a later life finds
were sampled by weights which that life has, because its checkpoint was written after them, and others by weights that
were lost with the steps behind the checkpoint. Versions say which life made them, so that the two are told apart.
"""

from __future__ import annotations

import json
import os
import secrets
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from fairbox.errors import FairboxError
from rollout.loop.results import TrajectoryResult
from rollout.tokens.segment import SegmentKind
from rollout.training.learner.sync import parse_version

NAME = "lives.json"


@dataclass(frozen=True, slots=True)
class RunLives:
    """Lives of a run until now. The last one is that which runs."""

    run: str
    """Name of the run, which no other run has."""
    begins: tuple[int, ...]
    """Steps that were done when each life began."""

    @property
    def life(self) -> int:
        """Number of this life, from 1."""
        return len(self.begins)

    def descends_from(self, version: str) -> bool:
        """Says whether this life's weights are those of `version`, or were made from them."""
        parsed = parse_version(version)
        if parsed is None or not 1 <= parsed[1] <= self.life:
            return False
        steps, life = parsed
        return all(steps <= begin for begin in self.begins[life:])


ONE_LIFE = RunLives("", (0,))
"""A run whose trajectories end with its process."""


def sampled_versions(result: TrajectoryResult) -> Counter[str]:
    """Versions of the weights that sampled a trajectory, in order, with the number of ids of each."""
    found: Counter[str] = Counter()
    for part in result.parts:
        for segment in part.segments:
            if segment.kind is SegmentKind.SAMPLED and segment.weight_version is not None:
                found[segment.weight_version] += len(segment.ids)
    return found


def begin_life(folder: Path, steps_done: int) -> RunLives:
    """A life that begins behind `steps_done` steps, noted in the folder of the run. Raises FairboxError."""
    path = folder / NAME
    try:
        known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        begins = [int(begin) for begin in known.get("begins", ())]
        lives = RunLives(str(known.get("run") or secrets.token_hex(8)), (*begins, steps_done))
        partial = path.with_suffix(".partial")
        with partial.open("w", encoding="utf-8") as file:
            json.dump({"run": lives.run, "begins": lives.begins}, file)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError as error:
        raise FairboxError(f"{path}: can't be written: {error.strerror or error}") from None
    except (AttributeError, TypeError, ValueError) as error:
        raise FairboxError(f"{path}: is none of ours: {error}") from None
    return lives
