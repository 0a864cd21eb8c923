"""The limiter's figures for Prometheus: `fairbox_limiter_*`."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from fairbox.net.metrics import tracing_metrics
from limiter.core import BucketStatistics, LimiterStatistics
from limiter.server.leader_term import LeaderTerm

_PREFIX = "fairbox_limiter_"
_GAUGES: tuple[tuple[str, str, Callable[[BucketStatistics], float]], ...] = (
    ("limit", "Most tokens that may be held at once.", lambda bucket: bucket.limits.max_in_flight),
    ("held", "Tokens in use, granted or bound.", lambda bucket: bucket.held),
    ("bound", "Tokens in use that an executor has bound.", lambda bucket: bucket.bound),
    ("queued", "Requests that wait.", lambda bucket: bucket.queued),
    ("oldest_wait_seconds", "Time that the request at the head has waited.", lambda bucket: bucket.oldest_wait),
    ("grants_per_second", "Grants per second over the last minute.", lambda bucket: bucket.grants_per_s),
)
_COUNTERS: tuple[tuple[str, str, Callable[[BucketStatistics], float]], ...] = (
    ("granted", "Leases granted.", lambda bucket: bucket.granted_total),
    ("revoked", "Leases taken back: not bound in time, client or executor gone.", lambda bucket: bucket.revoked_total),
    ("rejected", "Requests rejected: queue full or timed out, or invalid.", lambda bucket: bucket.rejected_total),
    ("cancelled", "Waiting requests withdrawn, or whose client has gone.", lambda bucket: bucket.cancelled_total),
)


def limiter_metrics(term: LeaderTerm) -> Iterator[Metric]:
    """Everything that a limiter that leads knows; of one that does not, only that. Call it where the runner lives."""
    yield _gauge("leader", "1: this process leads, and grants.", float(term.leads))
    if term.runner is None or not term.leads:
        return
    statistics = term.runner.core.statistics(term.runner.clock.now())
    yield from _whole(statistics)
    for name, text, value in _GAUGES:
        gauge = GaugeMetricFamily(_PREFIX + name, text, labels=["bucket"])
        for bucket in statistics.buckets:
            gauge.add_metric([bucket.limits.name], value(bucket))
        yield gauge
    for name, text, value in _COUNTERS:
        counter = CounterMetricFamily(_PREFIX + name, text, labels=["bucket"])
        for bucket in statistics.buckets:
            counter.add_metric([bucket.limits.name], value(bucket))
        yield counter
    released = CounterMetricFamily(_PREFIX + "released", "Leases released, by outcome.", labels=["bucket", "outcome"])
    waits = GaugeMetricFamily(
        _PREFIX + "wait_seconds", "Wait of the last 1,024 grants, by quantile.", labels=["bucket", "quantile"]
    )
    for bucket in statistics.buckets:
        for outcome, count in bucket.outcomes.items():
            released.add_metric([bucket.limits.name, outcome.value], count)
        waits.add_metric([bucket.limits.name, "0.5"], bucket.wait_p50)
        waits.add_metric([bucket.limits.name, "0.99"], bucket.wait_p99)
    yield released
    yield waits
    yield from tracing_metrics(_PREFIX)


def _whole(statistics: LimiterStatistics) -> Iterator[Metric]:
    yield _gauge("epoch", "Epoch of this leader: each term has a higher one.", statistics.epoch)
    yield _gauge("recovering", "1: nothing is granted yet after a restart.", float(statistics.recovering))
    yield _gauge(
        "recovering_seconds",
        "Longest time until the limiter grants again after a restart; 0: it does.",
        statistics.recovering_for,
    )
    yield _gauge("missing_executors", "Executors that the limiter waits for after a restart.", len(statistics.missing))
    sessions = GaugeMetricFamily(_PREFIX + "sessions", "Open sessions.", labels=["kind"])
    sessions.add_metric(["executor"], statistics.executors)
    sessions.add_metric(["client"], statistics.sessions - statistics.executors)
    yield sessions


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(_PREFIX + name, text, value)
