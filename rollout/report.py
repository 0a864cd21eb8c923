"""Reports of a run for people: a progress bar while it goes on, a table when it has ended; and the same figures for a
program, `summary.json`."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from rollout.dump import DumpError
from rollout.engines.base import EngineStatistics
from rollout.metrics import RolloutMetrics
from rollout.tokens.drift import DriftKind
from rollout.tools.statistics import ToolStatistics

Reason = TypeVar("Reason", bound=StrEnum)
SUMMARY = "summary.json"
"""Its name beside the dump."""
_MOST_TESTS = 5
"""Problems, and tests of each, that the closing table names."""
_NOW = frozenset({"queued", "running", "waiting_for_worker", "waiting_for_lease", "waiting_to_begin"})
"""Figures of what engines and tools do now, which is nothing at the end."""


@contextlib.contextmanager
def run_progress(console: Console, total: int) -> Iterator[Callable[[RolloutMetrics, EngineStatistics], None]]:
    """A progress bar while the block runs: yields what draws where the run is."""
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.fields[note]}"))
    with Progress(TextColumn("rollouts"), *columns, console=console) as bar:
        rollouts = bar.add_task("rollouts", total=total, note="")

        def show(figures: RolloutMetrics, engine: EngineStatistics) -> None:
            speed = engine.sampled_tokens / engine.busy_s if engine.busy_s else 0.0
            mean = "-" if figures.mean_score is None else f"{figures.mean_score:.2f}"
            ran = sum(count for outcome, count in figures.outcomes.items() if outcome.ran)
            note = f"score {mean}  programs {ran}  {speed:.0f} tokens/s"
            if figures.masked:
                note += f"  masked {figures.masked}"
            bar.update(rollouts, completed=figures.trajectories, note=note)

        yield show


@dataclass(frozen=True, slots=True)
class FinishedRun:
    """A run at its end."""

    figures: RolloutMetrics
    planned: int
    """Trajectories that it was to hand over."""
    wall_s: float
    dump: Path
    engine: EngineStatistics
    tools: Mapping[str, ToolStatistics] = field(default_factory=dict)
    drift: Mapping[DriftKind, int] | None = None
    """Compared trajectories by kind of drift; None if none was compared."""
    complete: bool = True
    """Says whether every trajectory ended; False after a signal."""


def closing_table(run: FinishedRun) -> Table:
    """Score and its parts, tokens, turns, tool calls by outcome, time by phase."""
    figures, engine, flat = run.figures, run.engine, run.figures.flat()
    table = Table(title=f"{figures.trajectories} of {run.planned} rollouts in {run.wall_s:.0f} s", title_justify="left")
    table.add_column("what")
    table.add_column("value")
    mean = "none scored" if figures.mean_score is None else f"{figures.mean_score:.3f} over {figures.scored} scored"
    count = max(1, figures.trajectories)
    table.add_row("score", mean)
    if figures.mean_parts:
        table.add_row("reward parts", ", ".join(f"{name} {value:.3f}" for name, value in figures.mean_parts.items()))
    if tests := figures.tests.flat():
        table.add_row("tests", ", ".join(f"{name.partition('/')[2]} {value:.1%}" for name, value in tests.items()))
    if suspects := figures.tests.suspects():
        shown = [f"{group}: {' '.join(names[:_MOST_TESTS])}" for group, names in list(suspects.items())[:_MOST_TESTS]]
        table.add_row("never passed", f"{len(suspects)} problems, as {'; '.join(shown)}")
    unscored = f", {figures.unscored} could not be scored" if figures.unscored else ""
    table.add_row("masked", f"{figures.masked}{unscored}, {figures.retried} rollouts were tried again")
    table.add_row("stopped by", _counts(figures.stops))
    table.add_row("turns", f"{figures.turns}, {figures.turns / count:.1f} a rollout")
    table.add_row("tool calls", _counts(figures.outcomes))
    for name, calls in run.tools.items():
        mean = f", {flat[key]:.2f} s each" if (key := f"tool/{name}/mean_run_s") in flat else ""
        table.add_row(f"tool {name}", f"{calls.finished} calls answered, {calls.failed} failed{mean}")
    if conduct := _conduct(flat):
        table.add_row("search", conduct)
    cached = f"{engine.cached_tokens} of {engine.prompt_tokens} context tokens not computed again"
    table.add_row(
        "tokens",
        f"{', '.join(f'{number} {kind}' for kind, number in figures.tokens.items())}; {cached}",
    )
    if run.drift is not None:
        table.add_row("tokens encoded anew", _counts(Counter({kind: n for kind, n in run.drift.items() if n})))
    phases = (f"{phase.replace('_', ' ')} {seconds / count:.2f} s" for phase, seconds in figures.phase_s.items())
    table.add_row("time a rollout", ", ".join(phases))
    if engine.busy_s:
        table.add_row("engine speed", f"{engine.sampled_tokens / engine.busy_s:.0f} tokens/s")
    table.add_row("dump", str(run.dump))
    return table


def write_summary(run: FinishedRun) -> Path:
    """Writes the figures of `closing_table` and those that trainers log beside the dump, whole or not at all; the
    file's path. Raises DumpError when it can't be written."""
    figures = run.figures
    summary = {
        "complete": run.complete,
        "dump": run.dump.name,
        "wall_s": run.wall_s,
        "planned": run.planned,
        "finished": figures.trajectories,
        "retried": figures.retried,
        "masked": figures.masked,
        "unscored": figures.unscored,
        "scored": figures.scored,
        "score_mean": figures.mean_score,
        "turns": figures.turns,
        "stops": figures.stops,
        "causes": figures.causes,
        "tool_calls": figures.outcomes,
        "tools": {name: _ended(each) for name, each in run.tools.items()},
        "tokens": figures.tokens,
        "phase_seconds": figures.phase_s,
        "engine": _ended(run.engine),
        "drift": run.drift,
        "metrics": figures.flat(),
    }
    path = run.dump.with_name(SUMMARY)
    unfinished = path.with_name(f".{SUMMARY}.{os.getpid()}")
    try:
        unfinished.write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
        unfinished.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            unfinished.unlink(missing_ok=True)
        raise DumpError(f"{path}: can't be written: {error.strerror or error}") from None
    return path


def _ended(statistics: EngineStatistics | ToolStatistics) -> dict[str, Any]:
    return {name: value for name, value in dataclasses.asdict(statistics).items() if name not in _NOW}


def _conduct(figures: Mapping[str, float]) -> str:
    """Summary of how repositories were searched; empty if nothing was looked for."""
    if "metrics/hit" not in figures:
        return ""
    parts = [
        f"{figures['metrics/num_tool_calls_per_turn']:.1f} calls a turn",
        f"{figures['metrics/files_read']:.1f} files read",
        f"{figures['metrics/duplicate_command_rate']:.0%} of calls repeated",
        f"a right file seen by {figures['metrics/hit']:.0%}",
    ]
    if "metrics/first_hit_turn" in figures:
        parts.append(f"first in turn {figures['metrics/first_hit_turn']:.1f}")
    return ", ".join(parts)


def _counts(counter: Counter[Reason]) -> str:
    return ", ".join(f"{reason.value} {count}" for reason, count in counter.most_common()) or "none"
