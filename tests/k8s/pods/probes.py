"""Whether a container has started, is ready and is alive, from what its probes answered. Pure; times in seconds.

Until a startup probe has succeeded no other is made; where it fails too often, or liveness does, the container is to be
started again.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.k8s.pods.containers import ContainerPlan, Probe

__all__ = ["Due", "ProbeState"]


@dataclass(slots=True)
class Due:
    """One probe and its answers so far."""

    probe: Probe
    next_at: float
    succeeded: int = 0
    failed: int = 0

    def answered(self, good: bool, now: float) -> None:
        self.succeeded, self.failed = (self.succeeded + 1, 0) if good else (0, self.failed + 1)
        self.next_at = now + self.probe.period_s

    @property
    def good(self) -> bool:
        return self.succeeded >= self.probe.success_threshold

    @property
    def bad(self) -> bool:
        return self.failed >= self.probe.failure_threshold


@dataclass(slots=True)
class ProbeState:
    """The probes of one life of a container."""

    plan: ContainerPlan
    born: float
    ready_since: float | None = None
    startup: Due | None = field(init=False)
    readiness: Due | None = field(init=False)
    liveness: Due | None = field(init=False)

    def __post_init__(self) -> None:
        for name in ("startup", "readiness", "liveness"):
            probe: Probe | None = getattr(self.plan, name)
            setattr(self, name, Due(probe, self.born + probe.initial_delay_s) if probe is not None else None)
        if self.startup is None and self.readiness is None:
            self.ready_since = self.born

    @property
    def started(self) -> bool:
        return self.startup is None or self.startup.good

    @property
    def ready(self) -> bool:
        return self.ready_since is not None

    @property
    def broken(self) -> bool:
        """The container is to be killed and started again."""
        return any(due is not None and due.bad for due in (self.startup, self.liveness))

    def due(self, now: float) -> Due | None:
        """The probe to make next, where it is time."""
        candidates = [self.readiness, self.liveness] if self.started else [self.startup]
        late = [due for due in candidates if due is not None and due.next_at <= now]
        return min(late, key=lambda due: due.next_at, default=None)

    def answered(self, due: Due, good: bool, now: float) -> None:
        """Notes an answer."""
        due.answered(good, now)
        if due is self.startup:
            if due.good and self.readiness is None:
                self.ready_since = now
        elif due is self.readiness:
            if due.good and self.ready_since is None:
                self.ready_since = now
            elif due.bad:
                self.ready_since = None

    def available(self, now: float, min_ready_s: float) -> bool:
        """Ready for so long."""
        return self.ready_since is not None and now - self.ready_since >= min_ready_s
