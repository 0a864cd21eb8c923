"""One term of one limiter, from the campaign to the moment at which another one may lead, and where services find it.

Invariants: a runner exists only between the two; each roster is kept before executors that wait for it are welcomed,
and one that can't be kept ends nothing but their wait; when leading is in doubt the runner is closed first, and
everything else comes after.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import grpc
import grpc.aio

from fairbox.clock import Clock
from limiter.core import BucketLimits, LimiterCore, Timing
from limiter.core.effects import RosterChanged
from limiter.core.events import RosterFailed, RosterKept
from limiter.leadership import Leadership, LeadershipLost, RosterNotKept
from limiter.server.claims import Claims
from limiter.server.core_runner import CoreRunner

_LOG = logging.getLogger("limiter")
_STORE_AGAIN_S = 1.0
"""After a roster that could not be kept: what has left meanwhile can wait, and whoever joins is told to come again."""


class LeaderTerm:
    """`await LeaderTerm(...).run()` leads for as long as it can. It can't be repeated: who has lost starts afresh."""

    def __init__(
        self,
        leadership: Leadership,
        clock: Clock,
        *,
        buckets: Sequence[BucketLimits],
        timing: Timing,
        on_runner: Callable[[CoreRunner], None] | None = None,
    ) -> None:
        """`on_runner` is called when it leads."""
        self.leadership = leadership
        self.runner: CoreRunner | None = None
        """Set when the process begins to lead; stays, closed, when it has ended."""
        self._clock = clock
        self._buckets = buckets
        self._timing = timing
        self._on_runner = on_runner
        self._roster: RosterChanged | None = None
        self._roster_changed = asyncio.Event()
        self._stepped_down = asyncio.Event()

    @property
    def leads(self) -> bool:
        """True if anything can be decided here."""
        return self.runner is not None and not self.runner.closed

    async def take(self, context: grpc.aio.ServicerContext[Any, Any]) -> CoreRunner:
        """The runner; ends the call with UNAVAILABLE where there is none, or it was closed."""
        runner = self.runner
        if runner is None:
            text = f"this limiter does not lead; {self.leadership.leader or 'nobody it knows of'} does"
            await context.abort(grpc.StatusCode.UNAVAILABLE, text)
            raise AssertionError("abort() does not return")
        if runner.closed:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the limiter is shutting down")
        return runner

    async def run(self) -> NoReturn:
        """Raises LeadershipLost when another limiter leads or may lead. Whatever ends it, it resigns."""
        try:
            await self._run_term()
        finally:
            await asyncio.shield(self.leadership.resign())

    async def _run_term(self) -> NoReturn:
        leadership = self.leadership
        term = await leadership.campaign()
        core = LimiterCore(
            term.epoch,
            self._buckets,
            now=self._clock.now(),
            timing=self._timing,
            roster=term.roster,
            follows=term.follows,
            keeps_roster=leadership.keeps_roster,
        )
        self.runner = CoreRunner(
            core,
            self._clock,
            claims=Claims(term.key),
            lead_until=lambda: leadership.lead_until,
            on_roster=self._note_roster,
            on_stepped_down=self._stepped_down.set,
        )
        try:
            if self._on_runner is not None:
                self._on_runner(self.runner)
            await self._lead(self.runner)
        finally:
            self.runner.close()

    async def _lead(self, runner: CoreRunner) -> NoReturn:
        reason = "leading ended without a reason"
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self.leadership.hold(), name="leadership")
                tasks.create_task(self._keep_roster(runner), name="roster")
                tasks.create_task(self._notice(), name="end of the term")
        except* LeadershipLost as lost:
            runner.close("another limiter leads", 0.1)
            reason = str(lost.exceptions[0])
        # Raised out here: what is raised within `except*` comes out in a group before Python 3.11.4.
        raise LeadershipLost(reason)

    def _note_roster(self, changed: RosterChanged) -> None:
        self._roster = changed
        self._roster_changed.set()

    async def _keep_roster(self, runner: CoreRunner) -> NoReturn:
        """Keeps the newest roster; those that were superseded meanwhile need not be written."""
        while True:
            await self._roster_changed.wait()
            self._roster_changed.clear()
            changed = self._roster
            assert changed is not None
            try:
                await self.leadership.store(changed.members)
            except RosterNotKept as error:
                _LOG.error("the roster of executors is not kept, nobody can join: %s", error)
                runner.apply(RosterFailed(f"the roster can't be kept: {error}"))
                await asyncio.sleep(_STORE_AGAIN_S)
                self._roster_changed.set()
            else:
                runner.apply(RosterKept(changed.version))

    async def _notice(self) -> NoReturn:
        await self._stepped_down.wait()
        raise LeadershipLost("it was not renewed in time")
