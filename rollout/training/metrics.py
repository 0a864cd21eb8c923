"""Figures of a run: one line of `metrics.jsonl` for each step, TensorBoard where it is installed, a table for people.

Invariant: after a resume, the file has each step once, in order. NaN is written as null.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rich.console import Console

from fairbox.errors import FairboxError

__all__ = ["METRICS", "MetricLog"]

METRICS = "metrics.jsonl"
"""Its name in the folder of a run."""

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


class MetricLog:
    """`with MetricLog(folder, console, after=step) as log: log.write(step, figures)`; `after` -1 keeps no line."""

    def __init__(self, folder: Path, console: Console, *, after: int) -> None:
        self._path = folder / METRICS
        self._console = console
        self._after = after
        self._rows = 0
        self._board: Any = None
        self._folder = folder

    def __enter__(self) -> Self:
        """Cuts off the lines of steps that are done again. Raises FairboxError."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            kept = [line for line in _lines(self._path) if json.loads(line)["step"] <= self._after]
            beside = self._path.with_suffix(".part")
            beside.write_text("".join(kept), encoding="utf-8")
            beside.replace(self._path)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise FairboxError(f"{self._path}: can't be used: {error}") from None
        self._board = _tensorboard(self._folder / "tensorboard", purge=self._after + 1)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._board is not None:
            self._board.close()

    def write(self, step: int, figures: Mapping[str, float]) -> None:
        """One step. Raises FairboxError when the file can't be written."""
        plain = {name: value if math.isfinite(value) else None for name, value in figures.items()}
        try:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"step": step, **plain}) + "\n")
        except OSError as error:
            raise FairboxError(f"{self._path}: can't be written: {error.strerror or error}") from None
        if self._board is not None:
            for name, value in figures.items():
                self._board.add_scalar(name if "/" in name else f"train/{name}", value, step)
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


def _lines(path: Path) -> list[str]:
    """Whole lines; the rest of one that a crash cut off is left out."""
    if not path.exists():
        return []
    return [line for line in path.read_text(encoding="utf-8").splitlines(keepends=True) if line.endswith("\n")]


def _tensorboard(folder: Path, *, purge: int) -> Any:
    """A writer, or None where the package is not installed."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # it looks for tensorflow, which is talkative
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    return SummaryWriter(str(folder), purge_step=purge)
