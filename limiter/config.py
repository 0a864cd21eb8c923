"""Settings of `python -m limiter`."""

from __future__ import annotations

from dataclasses import dataclass

from fairbox.errors import ConfigError
from fairbox.security import ServerSecuritySettings
from fairbox.settings import setting
from fairbox.telemetry.program import TelemetrySettings
from limiter.core import BucketLimits, BucketOrder, Timing

LEADERS = ("none", "file", "k8s")
_OUTLIVES_S = 60.0
"""Default of `executor_ttl_s` where a roster is kept: a takeover (6 s), an outage of the API server and a slow start of
the next limiter (half a minute each) fit in. Only executors that died are waited for so long."""
_LEAST_TTL_S = 0.2
MAX_BUCKETS = 1_000
"""Status shows every bucket, so there can't be any number of them."""


@dataclass(frozen=True)
class BucketConfig:
    """Settings of one bucket. All of them can change while the limiter runs."""

    max_in_flight: int = setting(10, help="Most tokens held at once, from 1 to 1,000,000.")
    max_queued: int = setting(100_000, help="Most requests that wait, from 1; at most 10,000 of one client.")
    start_by_s: float = setting(5.0, help="A grant that no executor has bound within this time ends, seconds.")
    rate_per_s: float = setting(0.0, help="Most leases granted per second on average; 0: any number.")
    order: str = setting("fifo", choices=BucketOrder, help="fifo, or fair_by_tenant: round robin over tenants.")
    adaptive: bool = setting(False, help="Lower the limit on overload and timeouts, and raise it again.")
    paused: bool = setting(False, help="Grant nothing; requests queue.")
    max_hold_s: float = setting(0.0, help="Longest lease without an executor that binds, seconds; 0: none are given.")

    def limits(self, name: str) -> BucketLimits:
        """The same, as the core takes it."""
        return BucketLimits(
            name,
            self.max_in_flight,
            self.max_queued,
            start_by=self.start_by_s,
            rate_per_s=self.rate_per_s,
            order=BucketOrder(self.order),
            adaptive=self.adaptive,
            paused=self.paused,
            max_hold=self.max_hold_s,
        )


@dataclass(frozen=True)
class LimiterConfig(TelemetrySettings, ServerSecuritySettings):
    """Settings of the limiter."""

    listen: str = setting("127.0.0.1:50052", help="Address for clients and executors, HOST:PORT.")
    admin_listen: str = setting("127.0.0.1:50053", help="Address for operators, HOST:PORT.")
    health_listen: str = setting("127.0.0.1:50062", help="Address for health checks, HOST:PORT.")
    metrics_listen: str = setting("127.0.0.1:9465", help="Address for Prometheus, HOST:PORT; empty: none.")
    executor_token_file: str = setting(
        "", help="File with tokens of executors, one a line; goes with client_token_file."
    )
    insecure: bool = setting(False, help="Allow addresses beyond loopback that neither tokens nor tls_client_ca guard.")
    buckets: dict[str, BucketConfig] = setting(
        factory=lambda: {"code": BucketConfig()}, help="Buckets by name, e.g. buckets.code.max_in_flight=4."
    )
    leader: str = setting(
        "none",
        choices=LEADERS,
        help="How to be the only limiter that grants: none (by your word: start one, and one only), file (by a lock on "
        "this machine), k8s (by a Lease of the cluster).",
    )
    state_file: str = setting("", help="With leader=file: keeps epoch and roster; not on a network drive.")
    lease_duration_s: float = setting(
        6.0,
        least=1,
        most=600,
        help="With leader=k8s: how long a limiter that is cut off keeps others from leading, seconds.",
    )
    fresh: bool = setting(
        False, help="Nothing runs that an earlier limiter has let in: grant at once, and not after the learning time."
    )
    grace_s: float = setting(1.5, least=0, most=3600, help="How long a client's session outlives its stream, seconds.")
    executor_ttl_s: float = setting(
        0.0,
        least=0,
        most=3600,
        help="How long programs outlive the limiter's silence, and a dead executor's stay counted, seconds; 0: "
        "60 with leader=file or k8s; 6 with none, where the first grant after each start waits for it.",
    )

    def validate(self) -> None:
        """Raises ConfigError for what settings can't have together, or by themselves beyond their bounds."""
        self.validate_telemetry()
        self.validate_security()
        if bool(self.client_token_file) is not bool(self.executor_token_file):
            raise ConfigError(
                "client_token_file and executor_token_file go together: set both, or none; with one alone, nobody "
                "could ask for leases, or nobody could bind them"
            )
        if 0 < self.executor_ttl_s < _LEAST_TTL_S:
            raise ConfigError(f"executor_ttl_s is {self.executor_ttl_s}, must be 0, or at least {_LEAST_TTL_S}")
        if bool(self.state_file) != (self.leader == "file"):
            raise ConfigError(
                f"state_file is {self.state_file!r} and leader is {self.leader!r}: file needs one, others none"
            )
        if not 1 <= len(self.buckets) <= MAX_BUCKETS:
            raise ConfigError(f"buckets has {len(self.buckets)} entries, must have from 1 to {MAX_BUCKETS}")
        for name, bucket in self.buckets.items():
            for field, problem in bucket.limits(str(name)).problems():
                if field == "name":
                    raise ConfigError(f"buckets.{name}: a name {problem}")
                raise ConfigError(f"buckets.{name}.{field} {problem}")

    def timing(self) -> Timing:
        """The times, as the core takes them."""
        ttl = self.executor_ttl_s or (Timing().executor_ttl if self.leader == "none" else _OUTLIVES_S)
        return Timing(grace=self.grace_s, executor_ttl=ttl)

    def limits(self) -> list[BucketLimits]:
        """The buckets, as the core takes them."""
        return [bucket.limits(name) for name, bucket in self.buckets.items()]
