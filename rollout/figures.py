"""The figures of a run for Prometheus while it goes on: `fairbox_rollout_*`. docs/reference/metrics.md lists them.

Everything is read from the statistics of runner, engine and tools, and from the figures that the closing table is made
of. Labels are of closed sets and of the run's own tools.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from executor_service import Cause
from fairbox.net.metrics import MetricsServer, tracing_metrics
from rollout.config import RolloutConfig
from rollout.engines.base import EngineStatistics
from rollout.loop.limits import StopReason
from rollout.loop.runner import RunnerStatistics
from rollout.metrics import RolloutMetrics
from rollout.tools.base import ToolOutcome
from rollout.tools.statistics import ToolStatistics

_PREFIX = "fairbox_rollout_"


@contextlib.asynccontextmanager
async def open_figures(config: RolloutConfig, collect: Callable[[], Iterator[Metric]]) -> AsyncIterator[str]:
    """Serves them where `metrics_listen` says; yields the address, empty where it says nothing."""
    if not config.metrics_listen:
        yield ""
        return
    server = MetricsServer(config.metrics_listen, collect, prefix="fairbox_rollout", insecure=config.insecure)
    async with server:
        yield server.address


def service_metrics(engine: EngineStatistics, tools: Mapping[str, ToolStatistics]) -> Iterator[Metric]:
    """Yields the metrics of engine and tools, live ones and totals; and of spans."""
    yield _gauge("engine_queued", "Turns that wait for the engine.", engine.queued)
    yield _gauge("engine_running", "Turns that are sampled.", engine.running)
    yield _counter("engine_busy_seconds", "Time with at least one turn in the engine.", engine.busy_s)
    tokens = {"prompt": engine.prompt_tokens, "cached": engine.cached_tokens, "sampled": engine.sampled_tokens}
    yield _counters("engine_tokens", "Tokens of the engine, by kind.", "kind", tokens)
    yield from _tools(tools)
    yield from tracing_metrics(_PREFIX)


def progress_metrics(now: RunnerStatistics) -> Iterator[Metric]:
    """Yields the metrics of what is played."""
    yield _gauge("planned", "Trajectories to be handed over, if nothing is cut short.", now.planned)
    yield _gauge("running", "Trajectories that are played or scored.", now.running)
    yield _gauge("scoring", "Running trajectories that are being scored.", now.scoring)
    yield _counter("finished", "Trajectories handed over.", now.finished)
    yield _counter("masked", "Trajectories handed over without a score.", now.masked)
    yield _counter("retried", "Attempts beyond the first of a trajectory.", now.retried)
    yield _counter("scored_again", "Repetitions of scoring alone.", now.scored_again)
    yield _counter("dropped", "Trajectories that were started and not handed over.", now.dropped)


def outcome_metrics(figures: RolloutMetrics) -> Iterator[Metric]:
    """Yields the metrics of the trajectories that a run has handed over."""
    stops = {reason: figures.stops[reason] for reason in StopReason}
    yield _counters("stops", "Trajectories, by stop reason.", "reason", stops)
    causes = {cause.lower(): figures.causes[cause] for cause in Cause}
    yield _counters("causes", "Trajectories, by cause.", "cause", causes)
    outcomes = {outcome: figures.outcomes[outcome] for outcome in ToolOutcome}
    yield _counters("tool_calls", "Tool calls of trajectories, by outcome.", "outcome", outcomes)
    yield _counters("tokens", "Tokens of trajectories, by kind.", "kind", figures.tokens)
    phases = "Time of trajectories by phase; calls side by side add up."
    yield _counters("phase_seconds", phases, "phase", figures.phase_s)
    mean = float("nan") if figures.mean_score is None else figures.mean_score
    yield _gauge("score_mean", "Mean score of trajectories; NaN before the first.", mean)


def _tools(tools: Mapping[str, ToolStatistics]) -> Iterator[Metric]:
    calls = GaugeMetricFamily(
        _PREFIX + "tool_calls_now",
        "Calls of a tool by phase: waiting for a worker or a lease, or running.",
        labels=["tool", "phase"],
    )
    held = GaugeMetricFamily(
        _PREFIX + "tool_waiting_to_begin",
        "Trajectories that do not begin yet, because the service of a tool fails.",
        labels=["tool"],
    )
    for name, now in sorted(tools.items()):
        phases = {"worker": now.waiting_for_worker, "lease": now.waiting_for_lease, "running": now.running}
        for phase, number in phases.items():
            calls.add_metric([name, phase], number)
        held.add_metric([name], now.waiting_to_begin)
    yield from (calls, held)


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(_PREFIX + name, text, value)


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(_PREFIX + name, text, value)


def _counters(name: str, text: str, label: str, values: Mapping[Any, float]) -> Metric:
    family = CounterMetricFamily(_PREFIX + name, text, labels=[label])
    for value, number in values.items():
        family.add_metric([str(value)], number)
    return family
