"""Holds new trajectories back while the service of a tool fails.

Without it a run whose executor is down goes on, and trains on what is left: trajectories that called no tool. With it
trajectories that have not begun wait until the service answers, those that it failed are played again behind them, and
nothing is selected.

`Breaker` decides, as a pure state machine; `ServiceGate` waits. Invariants: one waiter at a time probes; a call that
succeeds lets everybody in; a waiter that is cancelled leaves nothing behind; a service that has failed for `patience_s`
lets nobody wait any longer: whoever comes is refused until a probe succeeds, and probes stay `_PROBE_LAST_S` apart.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator

from fairbox.clock import Clock
from rollout.tools.base import InfraError

_PROBE_FIRST_S, _PROBE_LAST_S = 0.5, 10.0
"""Between probes: the first pause, doubled up to the last. A service that is back is found within the last one."""


class Breaker:
    """Times are monotonic seconds. `patience_s`: how long trajectories wait for the service before they are refused."""

    __slots__ = ("_failures", "_patience", "_probe_at", "_since", "why")

    def __init__(self, patience_s: float) -> None:
        self.why = ""
        """Sentence of the last failure."""
        self._patience = patience_s
        self._since: float | None = None
        self._failures = 0
        """Probes that failed since it opened."""
        self._probe_at = 0.0

    @property
    def open(self) -> bool:
        """True while new trajectories have to wait."""
        return self._since is not None

    def succeeded(self) -> None:
        """A call or a probe was answered."""
        self._since, self._failures = None, 0

    def failed(self, why: str, now: float) -> None:
        """A call failed by the service. A single one can be chance, so the first probe is due at once."""
        self.why = why
        if self._since is None:
            self._since, self._failures, self._probe_at = now, 0, now

    def probe_failed(self, why: str, now: float) -> None:
        """A probe failed by the service."""
        self.why = why
        self._probe_at = now + min(_PROBE_LAST_S, _PROBE_FIRST_S * 2.0 ** min(self._failures, 30))
        self._failures += 1

    def pause(self, now: float) -> float:
        """Seconds until the next probe is due."""
        return max(0.0, self._probe_at - now)

    def refusal(self, now: float) -> str:
        """The sentence for those who wait, once they have waited too long; else empty."""
        if self._since is None or not self._failures or now - self._since < self._patience:
            return ""
        return f"the service has been failing for {now - self._since:.0f} s: {self.why}"


class ServiceGate:
    """`await gate.passed(probe)` before a trajectory; `with gate.noted():` around each call of the service."""

    def __init__(self, clock: Clock, *, patience_s: float) -> None:
        self._clock = clock
        self._breaker = Breaker(patience_s)
        self._turn = asyncio.Lock()
        self._closed = asyncio.Event()
        """Set when a call succeeds."""
        self.waiting = 0
        """Trajectories that wait."""

    @property
    def open(self) -> bool:
        """True while the service fails."""
        return self._breaker.open

    @contextlib.contextmanager
    def noted(self, *, answers: bool = True) -> Iterator[None]:
        """Notes whether the service did its job. `answers`: an end without InfraError shows that it answered."""
        try:
            yield
        except InfraError as error:
            self._breaker.failed(str(error), self._clock.now())
            self._closed.clear()
            raise
        if answers:
            self._succeeded()

    async def passed(self, probe: Callable[[], Awaitable[None]]) -> None:
        """Returns when the service works, as far as is known: at once if its last call succeeded. `probe` asks it for
        something that has no effect, and raises InfraError. Raises InfraError when it has failed for too long."""
        if not self._breaker.open:
            return
        self.waiting += 1
        try:
            async with self._turn:
                while self._breaker.open:
                    await self._probe(probe)
        finally:
            self.waiting -= 1

    async def _probe(self, probe: Callable[[], Awaitable[None]]) -> None:
        breaker, now = self._breaker, self._clock.now()
        if pause := breaker.pause(now):
            if refusal := breaker.refusal(now):
                raise InfraError(refusal)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._closed.wait()
            if not breaker.open:
                return
        try:
            await probe()
        except InfraError as error:
            now = self._clock.now()
            breaker.probe_failed(str(error), now)
            if refusal := breaker.refusal(now):
                raise InfraError(refusal) from error
        else:
            self._succeeded()

    def _succeeded(self) -> None:
        self._breaker.succeeded()
        self._closed.set()
