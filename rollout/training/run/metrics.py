"""Figures of a run: one line of `metrics.jsonl` for each step, a table for people, boards (boards.py), Prometheus.

Invariant: after a resume, the file has each step once, in order. NaN is written as null.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from rich.console import Console

from fairbox.errors import FairboxError
from rollout.training.run.boards import Board, WandbSettings, open_boards

METRICS = "metrics.jsonl"
"""Name of the file in the folder of a run."""

_COLUMNS = (
    ("step", "step", 5, ".0f"),
    ("reward", "reward", 8, ".3f"),
    ("eval", "eval/reward", 8, ".3f"),
    ("masked", "masked", 7, ".0f"),
    ("loss", "policy_loss", 10, ".2e"),
    ("kl", "approx_kl", 9, ".1e"),
    ("entropy", "entropy", 8, ".3f"),
    ("grad", "grad_norm", 9, ".2e"),
    ("logprob", "logprob_difference_max", 9, ".1e"),
    ("tokens", "trained_tokens", 8, ".0f"),
    ("roll s", "time/rollouts_s", 8, ".1f"),
    ("train s", "time/update_s", 8, ".1f"),
)
"""Heading, name of the figure, width, format."""


def trainer_metrics(*, step: int, steps: int, saved: int, figures: Mapping[str, float]) -> Iterator[Metric]:
    """Metrics of the progress of a run, and the figures of its last step or evaluation."""
    prefix = "fairbox_training_"
    yield GaugeMetricFamily(prefix + "step", "Steps that are done.", step)
    yield GaugeMetricFamily(prefix + "steps", "Steps of the whole run.", steps)
    yield GaugeMetricFamily(prefix + "saved_step", "Steps that the newest checkpoint has; 0: there is none.", saved)
    text = "Figures of the last step by name, as in metrics.jsonl."
    family = GaugeMetricFamily(prefix + "figure", text, labels=["name"])
    for name, value in sorted(figures.items()):
        family.add_metric([name], value)
    yield family


class MetricLog:
    """`with MetricLog(folder, console, after=step) as log: log.write(step, figures)`; `after` -1 keeps no line."""

    def __init__(self, folder: Path, console: Console, *, after: int, wandb: WandbSettings | None = None) -> None:
        self._path = folder / METRICS
        self._console = console
        self._after = after
        self._rows = 0
        self._wandb = wandb
        self._boards: list[Board] = []
        self._folder = folder

    def __enter__(self) -> Self:
        """Cuts off the lines of steps that are done again. Raises FairboxError."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            kept = [line for line in _lines(self._path) if json.loads(line)["step"] <= self._after]
            self._replace(kept)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise FairboxError(f"{self._path}: can't be used: {error}") from None
        self._boards = open_boards(self._folder, after=self._after, wandb=self._wandb)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for board in self._boards:
            board.close(failed=error is not None)

    def lacks(self, step: int, name: str) -> bool:
        """Says whether the last line is that of `step` and has no such figure."""
        last = json.loads((_lines(self._path) or ["{}"])[-1])
        return last.get("step") == step and name not in last

    def write(self, step: int, figures: Mapping[str, float]) -> None:
        """Writes one step. Raises FairboxError if the file can't be written."""
        try:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"step": step, **_plain(figures)}) + "\n")
        except OSError as error:
            raise FairboxError(f"{self._path}: can't be written: {error.strerror or error}") from None
        self._tell(step, figures)

    def add(self, figures: Mapping[str, float]) -> None:
        """More figures of the step that the last line is of. Raises FairboxError as `write`."""
        *before, last = _lines(self._path)
        found = json.loads(last) | _plain(figures)
        try:
            self._replace([*before, json.dumps(found) + "\n"])
        except OSError as error:
            raise FairboxError(f"{self._path}: can't be written: {error.strerror or error}") from None
        self._tell(found["step"], figures)

    def _replace(self, lines: Sequence[str]) -> None:
        beside = self._path.with_suffix(".part")
        beside.write_text("".join(lines), encoding="utf-8")
        beside.replace(self._path)

    def _tell(self, step: int, figures: Mapping[str, float]) -> None:
        """Boards and people."""
        grouped = {name if "/" in name else f"train/{name}": value for name, value in figures.items()}
        for board in self._boards:
            board.write(step, grouped)
        self._show({"step": float(step), **figures})

    def _show(self, figures: Mapping[str, float]) -> None:
        if self._rows % 20 == 0:
            heads = "".join(f"{head:>{width}}" for head, _, width, _ in _COLUMNS)
            self._console.print(heads, style="bold", highlight=False, soft_wrap=True)
        self._rows += 1
        cells = (
            f"{format(figures[name], form) if name in figures else '-':>{width}}" for _, name, width, form in _COLUMNS
        )
        self._console.print("".join(cells), highlight=False, soft_wrap=True)


def _plain(figures: Mapping[str, float]) -> dict[str, float | None]:
    return {name: value if math.isfinite(value) else None for name, value in figures.items()}


def _lines(path: Path) -> list[str]:
    """Whole lines; the rest of one that a crash cut off is left out."""
    if not path.exists():
        return []
    return [line for line in path.read_text(encoding="utf-8").splitlines(keepends=True) if line.endswith("\n")]
