"""What guards a service, for Prometheus: `PREFIX_certificate_*`, `PREFIX_calls_denied`, `PREFIX_security_problems`."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from fairbox.security.access import Denial
from fairbox.security.server import SecurityFacts

__all__ = ["security_metrics"]


def security_metrics(prefix: str, facts: SecurityFacts) -> Iterator[Metric]:
    """`prefix` like `fairbox_limiter`."""
    yield GaugeMetricFamily(
        f"{prefix}_certificate_expires_timestamp_seconds",
        "End of the certificate in use, seconds since 1970; 0: there is none.",
        facts.certificate_expires_at,
    )
    denied = CounterMetricFamily(
        f"{prefix}_calls_denied", "Calls refused for their token, since the start.", labels=["reason"]
    )
    denied.add_metric([Denial.UNAUTHENTICATED.name.lower()], facts.unauthenticated)
    denied.add_metric([Denial.PERMISSION_DENIED.name.lower()], facts.denied)
    yield denied
    yield GaugeMetricFamily(
        f"{prefix}_security_problems",
        "Certificates and files of tokens that changed and can't be used: what was read before stays.",
        len(facts.problems),
    )
