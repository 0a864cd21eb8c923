"""The executor's figures for Prometheus: `fairbox_executor_*`. docs/reference/metrics.md lists them.

Everything is read from statistics and from the answer of GetStatus. Labels are of closed sets (outcomes, causes,
reasons, profiles of the configuration), but for tenants, which are bounded where they are counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from executor_service.runs.tally import RunTally
from executor_service.sandbox.pool import SandboxPool
from executor_service.sessions.table import SessionTable
from executor_service.v1 import executor_pb2 as pb
from fairbox.net.metrics import tracing_metrics

_PREFIX = "fairbox_executor_"


def executor_metrics(
    now: Callable[[], pb.GetStatusResponse], tally: RunTally, sessions: SessionTable, boxes: SandboxPool
) -> Iterator[Metric]:
    """All figures of this moment; `now` answers GetStatus. Call it where the server lives."""
    status = now()
    info = GaugeMetricFamily(
        _PREFIX + "info", "1, with the server's version and isolation level.", labels=["version", "isolation"]
    )
    level = pb.IsolationLevel.Name(status.isolation_level).removeprefix("ISOLATION_LEVEL_").lower()
    info.add_metric([status.version, level], 1.0)
    yield info
    yield from _queue(status)
    yield from tally.collect()
    yield _counter("deduplicated", "Calls answered from the run of an earlier one.", status.deduplicated_total)
    yield from _limiter(status)
    yield from _sessions(sessions)
    yield from _workers(boxes)
    yield from _workspaces(status.workspaces)
    yield from _images(status.images)
    yield from _compiler(status.compile_cache)
    yield from tracing_metrics(_PREFIX)


def _queue(status: pb.GetStatusResponse) -> Iterator[Metric]:
    yield _gauge("max_running", "Most programs at once.", status.max_running)
    yield _gauge("running", "Programs that run or are set up.", status.running)
    yield _gauge("program_memory_bytes", "Memory that all programs together may have.", status.program_memory_bytes)
    yield _gauge("running_memory_bytes", "Memory that the running programs may use.", status.running_memory_bytes)
    held = status.session_memory_bytes
    yield _gauge("session_memory_bytes", "Memory that sessions hold while none of their cells runs.", held)
    yield _gauge("max_queued", "Most requests that wait.", status.max_queued)
    yield _gauge("queued", "Requests that wait for a lease or a slot.", status.queued)
    yield _gauge("oldest_wait_seconds", "Time that the request at the head has waited.", status.oldest_wait_s)
    load = (status.running + status.queued) / max(1, status.max_running)
    yield _gauge(
        "load",
        "Running and waiting requests divided by max_running: to balance and scale by; above 1 requests wait.",
        load,
    )
    yield _gauge("draining", "1: the server is ending and takes nothing new; 0: it is not.", float(status.draining))
    yield _gauge("uptime_seconds", "Time that the server has run.", status.uptime_s)


def _limiter(status: pb.GetStatusResponse) -> Iterator[Metric]:
    limiter = status.limiter
    yield _gauge("limiter_valid", "1: the limiter vouches for this server, or there is none.", float(limiter.valid))
    yield _gauge("limiter_bound", "Leases that are bound here.", limiter.bound)
    yield _gauge("limiter_epoch", "Epoch of the limiter that answered last; 0: none.", limiter.epoch)


def _sessions(table: SessionTable) -> Iterator[Metric]:
    live = table.live.values()
    branches = sum(bool(session.info.parent_session_id) for session in live)
    yield _gauge("sessions", "Sessions that live, branches among them.", len(live))
    yield _gauge("session_branches", "Sessions that were forked from another.", branches)
    yield _gauge("sessions_busy", "Sessions whose cell runs.", sum(session.busy for session in live))
    waiting = sum(len(session.waiting) for session in live)
    yield _gauge("session_cells_waiting", "Cells that wait for their turn.", waiting)
    yield _counter("sessions_made", "Sessions made, branches among them.", table.made)


def _workers(boxes: SandboxPool) -> Iterator[Metric]:
    workers = GaugeMetricFamily(_PREFIX + "workers", "Sandboxes by profile and state.", labels=["profile", "state"])
    waiting = GaugeMetricFamily(_PREFIX + "workers_wanted", "Runs that wait for a sandbox.", labels=["profile"])
    made = CounterMetricFamily(_PREFIX + "workers_made", "Sandboxes made.", labels=["profile"])
    for profile, pool in sorted(boxes.statistics().items()):
        for state, number in (("ready", pool.ready), ("used", pool.used), ("pending", pool.pending)):
            workers.add_metric([profile, state], number)
        waiting.add_metric([profile], pool.waiting)
        made.add_metric([profile], pool.made_total)
    yield from (workers, waiting, made)


def _workspaces(counts: pb.WorkspaceStatus) -> Iterator[Metric]:
    yield _gauge("workspaces", "Workspaces that are ready.", counts.entries)
    yield _gauge("workspaces_in_use", "Ready workspaces that a run or a session holds.", counts.in_use)
    yield _gauge("workspace_bytes", "Bytes of all workspaces on disk.", counts.bytes)
    yield _gauge("workspace_max_bytes", "Most bytes that workspaces may take on disk.", counts.max_bytes)
    yield _gauge("workspaces_preparing", "Preparations of workspaces under way.", counts.preparing)
    yield _counter("workspaces_prepared", "Preparations of workspaces done.", counts.prepared_total)
    yield _counter("workspaces_evicted", "Workspaces removed to make room.", counts.evicted_total)


def _images(counts: pb.ImageStatus) -> Iterator[Metric]:
    yield _gauge("images_held", "Images that a run uses, or that sandboxes wait for work in.", counts.held)
    yield _gauge("images_in_use", "Images that a run or a session uses.", counts.in_use)
    yield _gauge("image_workers_ready", "Sandboxes that wait for work in an image.", counts.ready)
    yield _counter("snapshots", "Snapshots of sessions taken.", counts.snapshots)


def _compiler(counts: pb.CompileCacheStatus) -> Iterator[Metric]:
    yield _gauge("compile_cache_bytes", "Bytes of compiled programs that are kept.", counts.bytes)
    yield _counter("compile_cache_hits", "Compilations found in the cache.", counts.hits_total)
    yield _counter("compile_cache_built", "Compilations made because the cache did not have them.", counts.built_total)


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(_PREFIX + name, text, value)


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(_PREFIX + name, text, value)
