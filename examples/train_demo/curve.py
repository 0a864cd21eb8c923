"""The rewards of a run's steps: whether they rose, and their picture."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Rise:
    """The last quarter of a run's steps against its first."""

    first: float
    last: float
    error: float
    """Standard error of their difference, from the steps' means."""

    @property
    def errors(self) -> float:
        """Number of standard errors by which the last quarter lies above the first."""
        if self.error == 0:
            return math.copysign(math.inf, self.last - self.first) if self.last != self.first else 0.0
        return (self.last - self.first) / self.error


def read_figures(path: Path) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def rise_of(rewards: Sequence[float]) -> Rise:
    """Compares the last quarter of the steps' mean rewards with the first. ValueError for fewer than 8 steps: their
    quarters have no deviation."""
    if len(rewards) < 8:
        raise ValueError(f"{len(rewards)} steps, must be at least 8")
    quarter = len(rewards) // 4
    first, last = rewards[:quarter], rewards[-quarter:]
    error = math.sqrt((statistics.variance(first) + statistics.variance(last)) / quarter)
    return Rise(statistics.mean(first), statistics.mean(last), error)


def draw(figures: Sequence[dict[str, Any]], path: Path, *, title: str) -> None:
    """A PNG of the steps' rewards with their standard errors, and of the evaluations."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    steps = [line for line in figures if line.get("reward") is not None]
    held_out = [line for line in figures if line.get("eval/reward") is not None]
    x, y = [line["step"] for line in steps], [line["reward"] for line in steps]
    chart, axes = pyplot.subplots(figsize=(8, 4.5), layout="constrained")
    spread = [(line["reward_std"] or 0.0) / math.sqrt(max(1.0, line["trajectories"])) for line in steps]
    axes.fill_between(
        x, [a - b for a, b in zip(y, spread, strict=True)], [a + b for a, b in zip(y, spread, strict=True)], alpha=0.25
    )
    axes.plot(x, y, label="sampled, mean of a step and its standard error")
    if held_out:
        axes.plot(
            [line["step"] for line in held_out],
            [line["eval/reward"] for line in held_out],
            "o-",
            label="held out, greedy",
        )
    axes.set(xlabel="step", ylabel="reward", ylim=(-0.02, 1.02), title=title)
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right")
    chart.savefig(path, dpi=120)
    pyplot.close(chart)
