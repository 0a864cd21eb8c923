"""The executor's figures for Prometheus: `fairbox_executor_*`. docs/operations.md lists them.

Everything is read from statistics and from the answer of GetStatus. Labels are of closed sets (outcomes, causes,
reasons, profiles of the configuration), but for tenants, which are bounded where they are counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from executor_service.core.sessions import SessionStatistics
from executor_service.core.tally import Refusal, RunTally
from executor_service.model import Cause, Outcome
from executor_service.sandbox.boxes import PoolStatistics
from executor_service.v1 import executor_pb2 as pb
from fairbox.metrics import tracing_metrics

__all__ = ["executor_metrics"]

_PREFIX = "fairbox_executor_"


class HasSessions(Protocol):
    """The sessions of a server."""

    def statistics(self) -> SessionStatistics: ...


class HasPools(Protocol):
    """The boxes of a server."""

    def statistics(self) -> Mapping[str, PoolStatistics]: ...


def executor_metrics(
    now: Callable[[], pb.GetStatusResponse], tally: RunTally, sessions: HasSessions, boxes: HasPools
) -> Iterator[Metric]:
    """All figures of this moment; `now` answers GetStatus. Call it where the server lives."""
    status = now()
    info = GaugeMetricFamily(_PREFIX + "info", "1; what the server is.", labels=["version", "isolation"])
    level = pb.IsolationLevel.Name(status.isolation_level).removeprefix("ISOLATION_LEVEL_").lower()
    info.add_metric([status.version, level], 1.0)
    yield info
    yield from _queue(status)
    yield from _runs(tally)
    yield _counter("deduplicated", "Calls answered from the run of an earlier one.", status.deduplicated_total)
    yield from _limiter(status)
    yield from _sessions(sessions.statistics())
    yield from _workers(boxes.statistics())
    yield from _workspaces(status.workspaces)
    yield from _compiler(status.compile_cache)
    yield from tracing_metrics(_PREFIX)


def _queue(status: pb.GetStatusResponse) -> Iterator[Metric]:
    yield _gauge("max_running", "Most programs at once.", status.max_running)
    yield _gauge("running", "Programs that run or are set up.", status.running)
    yield _gauge("max_queued", "Most requests that wait.", status.max_queued)
    yield _gauge("queued", "Requests that wait for a lease or a slot.", status.queued)
    yield _gauge("oldest_wait_seconds", "How long the request at the head has waited.", status.oldest_wait_s)
    load = (status.running + status.queued) / max(1, status.max_running)
    yield _gauge("load", "Running and waiting requests by the most at once: to weigh and scale by.", load)
    yield _gauge("draining", "1: it ends, and takes nothing new.", float(status.draining))
    yield _gauge("uptime_seconds", "How long it has served.", status.uptime_s)


def _runs(tally: RunTally) -> Iterator[Metric]:
    runs = CounterMetricFamily(
        _PREFIX + "executions", "Runs that have a result, by outcome and cause.", labels=["outcome", "cause"]
    )
    for outcome, cause in sorted({*tally.outcomes, *((outcome, _usual(outcome)) for outcome in Outcome)}):
        runs.add_metric([outcome.value.lower(), cause.value.lower()], tally.outcomes[outcome, cause])
    yield runs
    refused = CounterMetricFamily(_PREFIX + "refused", "Requests that have none, by reason.", labels=["reason"])
    for reason in Refusal:
        refused.add_metric([reason.value], tally.refusals[reason])
    yield refused
    for histogram in (tally.queue_s, tally.setup_s, tally.run_s, tally.peak_bytes):
        yield from histogram.collect()
    if tally.max_tenants:
        tenants = CounterMetricFamily(_PREFIX + "tenant_executions", "Runs by tenant.", labels=["tenant"])
        for tenant, number in tally.tenants.items():
            tenants.add_metric([tenant], number)
        yield tenants


def _usual(outcome: Outcome) -> Cause:
    """The cause under which an outcome is shown before it has happened, so that its rate has a beginning."""
    return Cause.INFRA if outcome in (Outcome.SANDBOX_ERROR, Outcome.CANCELLED) else Cause.POLICY


def _limiter(status: pb.GetStatusResponse) -> Iterator[Metric]:
    limiter = status.limiter
    yield _gauge("limiter_valid", "1: the limiter vouches for this server, or there is none.", float(limiter.valid))
    yield _gauge("limiter_bound", "Leases that are bound here.", limiter.bound)
    yield _gauge("limiter_epoch", "Epoch of the limiter that answered last; 0: none.", limiter.epoch)


def _sessions(counts: SessionStatistics) -> Iterator[Metric]:
    yield _gauge("sessions", "Sessions that live, branches among them.", counts.live)
    yield _gauge("session_branches", "Sessions that were forked from another.", counts.branches)
    yield _gauge("sessions_busy", "Sessions whose cell runs.", counts.busy)
    yield _gauge("session_cells_waiting", "Cells that wait for their turn.", counts.waiting)
    yield _gauge("session_memory_bytes", "Memory of their interpreters after their last cells.", counts.memory_bytes)
    yield _counter("sessions_made", "Sessions made, branches among them.", counts.made_total)


def _workers(pools: Mapping[str, PoolStatistics]) -> Iterator[Metric]:
    workers = GaugeMetricFamily(_PREFIX + "workers", "Sandboxes by profile and state.", labels=["profile", "state"])
    waiting = GaugeMetricFamily(_PREFIX + "workers_wanted", "Runs that wait for a sandbox.", labels=["profile"])
    made = CounterMetricFamily(_PREFIX + "workers_made", "Sandboxes made.", labels=["profile"])
    for profile, pool in sorted(pools.items()):
        for state, number in (("ready", pool.ready), ("used", pool.used), ("pending", pool.pending)):
            workers.add_metric([profile, state], number)
        waiting.add_metric([profile], pool.waiting)
        made.add_metric([profile], pool.made_total)
    yield from (workers, waiting, made)


def _workspaces(counts: pb.WorkspaceStatus) -> Iterator[Metric]:
    yield _gauge("workspaces", "Workspaces that are ready.", counts.entries)
    yield _gauge("workspaces_in_use", "Of those, the ones that something holds.", counts.in_use)
    yield _gauge("workspace_bytes", "Their bytes on disk.", counts.bytes)
    yield _gauge("workspace_max_bytes", "The most bytes of all of them.", counts.max_bytes)
    yield _gauge("workspaces_preparing", "Preparations under way.", counts.preparing)
    yield _counter("workspaces_prepared", "Preparations done.", counts.prepared_total)
    yield _counter("workspaces_evicted", "Workspaces removed to make room.", counts.evicted_total)


def _compiler(counts: pb.CompileCacheStatus) -> Iterator[Metric]:
    yield _gauge("compile_cache_bytes", "Bytes of compiled programs that are kept.", counts.bytes)
    yield _counter("compile_cache_hits", "Compilations that were found.", counts.hits_total)
    yield _counter("compile_cache_built", "Compilations that were made.", counts.built_total)


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(_PREFIX + name, text, value)


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(_PREFIX + name, text, value)
