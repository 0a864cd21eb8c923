"""The figures of a run for Prometheus while it goes on: `fairbox_rollout_*`. docs/operations.md lists them.

Everything is read from the statistics of runner, engine and tools, and from the summary that the closing table is made
of. Labels are of closed sets and of the run's own tools.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Iterator, Mapping

from prometheus_client import Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from executor_service import Cause
from fairbox.metrics import SECONDS, MetricsServer, tracing_metrics
from rollout.config import RolloutConfig
from rollout.engines.base import EngineStatistics
from rollout.loop.limits import StopReason
from rollout.loop.results import TrajectoryResult
from rollout.loop.runner import RunnerStatistics
from rollout.summary import RunSummary
from rollout.tools.base import ToolOutcome
from rollout.tools.statistics import ToolStatistics

__all__ = ["RunFigures", "open_figures", "service_metrics"]

_PREFIX = "fairbox_rollout_"


class RunFigures:
    """What `metrics()` tells of a run. `add` each trajectory that is handed over."""

    def __init__(self, runner: Callable[[], RunnerStatistics], summary: RunSummary) -> None:
        self._runner = runner
        self._summary = summary
        text = "Time of trajectories that were handed over, without scoring."
        self._total_s = Histogram(_PREFIX + "trajectory_seconds", text, buckets=SECONDS, registry=None)

    def add(self, result: TrajectoryResult) -> None:
        """Counts what the summary has no distribution of."""
        self._total_s.observe(result.times.total_s)

    def metrics(self) -> Iterator[Metric]:
        """All of this moment."""
        yield from _progress(self._runner())
        yield from _sums(self._summary)
        yield from self._total_s.collect()


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
    """What engine and tools do now, and have done; and spans."""
    yield _gauge("engine_queued", "Turns that wait for the engine.", engine.queued)
    yield _gauge("engine_running", "Turns that are sampled.", engine.running)
    yield _counter("engine_turns", "Turns sampled.", engine.finished)
    yield _counter("engine_aborted", "Turns that were cancelled, timed out or failed.", engine.aborted)
    yield _counter("engine_busy_seconds", "Time with at least one turn in the engine.", engine.busy_s)
    tokens = CounterMetricFamily(_PREFIX + "engine_tokens", "Tokens of the engine, by kind.", labels=["kind"])
    for kind, number in (
        ("prompt", engine.prompt_tokens),
        ("cached", engine.cached_tokens),
        ("sampled", engine.sampled_tokens),
    ):
        tokens.add_metric([kind], number)
    yield tokens
    yield from _tools(tools)
    yield from tracing_metrics(_PREFIX)


def _progress(now: RunnerStatistics) -> Iterator[Metric]:
    yield _gauge("planned", "Trajectories to be handed over, if nothing is cut short.", now.planned)
    yield _gauge("running", "Trajectories that are played or scored.", now.running)
    yield _gauge("scoring", "Of those, the ones that are scored.", now.scoring)
    yield _counter("finished", "Trajectories handed over.", now.finished)
    yield _counter("masked", "Of those, the ones without a score.", now.masked)
    yield _counter("retried", "Attempts beyond the first of a trajectory.", now.retried)
    yield _counter("scored_again", "Repetitions of scoring alone.", now.scored_again)
    yield _counter("dropped", "Trajectories that were started and not handed over.", now.dropped)
    yield _counter("groups", "Complete groups.", now.groups)


def _sums(summary: RunSummary) -> Iterator[Metric]:
    stops = CounterMetricFamily(_PREFIX + "stops", "Trajectories, by why they stopped.", labels=["reason"])
    for reason in StopReason:
        stops.add_metric([reason.value], summary.stop_reasons[reason])
    yield stops
    causes = CounterMetricFamily(_PREFIX + "causes", "Trajectories, by who caused their end.", labels=["cause"])
    for cause in Cause:
        causes.add_metric([cause.value.lower()], summary.causes[cause])
    yield causes
    calls = CounterMetricFamily(_PREFIX + "tool_calls", "Tool calls of trajectories, by outcome.", labels=["outcome"])
    for outcome in ToolOutcome:
        calls.add_metric([outcome.value], summary.tool_outcomes[outcome])
    yield calls
    yield _counter("turns", "Turns of trajectories.", summary.turns)
    tokens = CounterMetricFamily(_PREFIX + "tokens", "Tokens of trajectories, by kind.", labels=["kind"])
    for kind, number in (
        ("prompt", summary.prompt_tokens),
        ("sampled", summary.sampled_tokens),
        ("tool", summary.tool_tokens),
    ):
        tokens.add_metric([kind], number)
    yield tokens
    phases = CounterMetricFamily(
        _PREFIX + "phase_seconds", "Time of trajectories by phase; calls side by side add up.", labels=["phase"]
    )
    for phase, seconds in (
        ("engine_queue", summary.queue_s),
        ("engine", summary.engine_s),
        ("tool_wait", summary.tool_wait_s),
        ("tool_run", summary.tool_run_s),
        ("score", summary.scoring_s),
    ):
        phases.add_metric([phase], seconds)
    yield phases
    yield _counter("scored", "Trajectories with a score.", summary.scored)
    mean = float("nan") if summary.mean_score is None else summary.mean_score
    yield _gauge("score_mean", "Mean of their scores; NaN before the first.", mean)


def _tools(tools: Mapping[str, ToolStatistics]) -> Iterator[Metric]:
    calls = GaugeMetricFamily(
        _PREFIX + "tool_calls_now", "Calls of a tool, by where they are.", labels=["tool", "phase"]
    )
    ended = CounterMetricFamily(_PREFIX + "tool_ended", "Calls of a tool that have ended.", labels=["tool", "answered"])
    sessions = GaugeMetricFamily(_PREFIX + "tool_sessions", "Sessions of a tool that live.", labels=["tool"])
    for name, now in sorted(tools.items()):
        phases = {"worker": now.waiting_for_worker, "lease": now.waiting_for_lease, "running": now.running}
        for phase, number in phases.items():
            calls.add_metric([name, phase], number)
        ended.add_metric([name, "yes"], now.finished)
        ended.add_metric([name, "no"], now.failed)
        sessions.add_metric([name], now.sessions)
    yield from (calls, ended, sessions)


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(_PREFIX + name, text, value)


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(_PREFIX + name, text, value)
