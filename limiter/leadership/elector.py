"""Runs an `Election` against a store: the leadership of a limiter that shares its record with others.

Invariants: one call to the store at a time, each with a deadline shorter than the time between two renewals; a call
that failed or was cancelled counts as one that may have happened; every wait is bounded, but for that to lead.
"""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
from collections.abc import Callable, Sequence

from fairbox.clock import Clock
from limiter.leadership.election import (
    DURATION_S,
    RENEWALS,
    Conflict,
    Election,
    Look,
    RecordStore,
    Rest,
    Role,
    RosterRefused,
    StoreUnavailable,
)
from limiter.leadership.term import KEY_BYTES, LeadershipLost, Member, RosterNotKept, Term

_LOG = logging.getLogger("limiter.leadership")
_CALL_SHARE = 0.8
"""Share of the time between two renewals that one call to the store may take."""
_FIRST_PAUSE = 1 / 120
"""Share of the duration to wait after a first failure, 50 ms of 6 s. It doubles with each further one."""
_LONGEST_PAUSE = 1 / 12
"""Share of the duration to wait after a failure at most."""


class Elector:
    """A `Leadership` over a `RecordStore`, which it closes when it resigns."""

    keeps_roster = True

    def __init__(
        self,
        records: RecordStore,
        clock: Clock,
        *,
        identity: str,
        duration: float = DURATION_S,
        fresh: bool = False,
        epoch_from: Callable[[], int] = lambda: 1,
        jitter: random.Random | None = None,
    ) -> None:
        """`identity`, `duration` (seconds) and `fresh` are `Election`'s. `epoch_from` is asked at each attempt to take
        over: the least epoch of the new term."""
        self._records = records
        self._clock = clock
        key = secrets.token_bytes(KEY_BYTES)
        self._election = Election(identity, duration=duration, fresh=fresh, key=key)
        self._epoch_from = epoch_from
        self._jitter = jitter or random.Random()  # noqa: S311 - spreads retries
        self._turn = asyncio.Lock()
        self._failures = 0
        self._complaint = ""
        self._refused = ""
        """Why the last roster can't be kept."""

    @property
    def leader(self) -> str:
        """Identity of who leads, as far as is known."""
        return self._election.leader

    @property
    def lead_until(self) -> float:
        """Until when nobody else leads, on the clock given; minus infinity while this one does not."""
        return self._election.lead_until

    async def campaign(self) -> Term:
        """Waits until this process leads, for as long as that takes. LeadershipLost after `resign()`."""
        election = self._election
        while election.role is not Role.LEADING or election.term is None or self._clock.now() >= election.lead_until:
            pause = await self._step()
            if election.role is Role.OVER:
                raise LeadershipLost("this process has resigned")
            await asyncio.sleep(pause)
        _LOG.info("%s leads in epoch %d", election.identity, election.term.epoch)
        return election.term

    async def hold(self) -> None:
        """Renews until it can't: LeadershipLost says why. At once when it does not lead."""
        election = self._election
        while election.role is Role.LEADING:
            pause = await self._step()
            await asyncio.sleep(pause)
        raise LeadershipLost(election.lost or "this process has resigned")

    async def store(self, roster: Sequence[Member]) -> None:
        """Writes the roster into the record, which renews too. RosterNotKept when it is too large, LeadershipLost when
        that can't be done in time."""
        election = self._election
        election.keep(roster)
        self._refused = ""
        while self._refused or not election.kept:
            if self._refused:
                raise RosterNotKept(self._refused)
            if election.role is not Role.LEADING:
                raise LeadershipLost(election.lost or "this process has resigned")
            pause = await self._step()
            if not election.kept:
                await asyncio.sleep(pause)

    async def resign(self) -> None:
        """Releases the record, within half the duration; if that fails, others wait until its time is over. Closes the
        store."""
        election = self._election
        election.resign()
        try:
            async with asyncio.timeout(election.duration / 2):
                while election.role is not Role.OVER:
                    pause = await self._step()
                    await asyncio.sleep(pause)
        except TimeoutError:
            _LOG.warning("the record of who leads could not be released; others wait until its time is over")
        finally:
            await self._records.close()

    async def _step(self) -> float:
        """Does what the election says next; returns how long to wait before the step after, in seconds."""
        async with self._turn:
            election, now = self._election, self._clock.now()
            decision = election.decide(now, epoch_from=self._epoch_from())
            if isinstance(decision, Rest):
                return max(0.0, decision.until - now)
            try:
                async with asyncio.timeout(election.duration / RENEWALS * _CALL_SHARE):
                    if isinstance(decision, Look):
                        found = await self._records.read()
                        election.saw(found, self._clock.now())
                    else:
                        written = await self._records.write(decision.record, decision.expected)
                        election.wrote(written, now)
            except Conflict:
                election.conflicted(self._clock.now())
                return self._pause()
            except RosterRefused as error:
                self._refused = str(error)
                election.keep_old()
                return 0.0
            except (StoreUnavailable, TimeoutError) as error:
                why = str(error) or "the store did not answer in time"
                self._complain(why)
                election.failed(self._clock.now(), why)
                return self._pause()
            except BaseException:
                election.failed(self._clock.now())
                raise
            self._failures, self._complaint = 0, ""
            return 0.0

    def _pause(self) -> float:
        """Doubles with each failure in a row; half of it is by chance, so that candidates don't move in step."""
        duration = self._election.duration
        pause = min(duration * _LONGEST_PAUSE, duration * _FIRST_PAUSE * 2.0 ** min(self._failures, 20))
        self._failures += 1
        return pause * self._jitter.uniform(0.5, 1.0)

    def _complain(self, why: str) -> None:
        if why != self._complaint:
            _LOG.warning("the record of who leads: %s", why)
        self._complaint = why
