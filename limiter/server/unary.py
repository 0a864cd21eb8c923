"""The unary calls: each waits for the end of its request's wait, and several may wait for the same one.

Invariants: a call that ends without handing its lease to its caller gives it back, unless another call waits for the
same request; every wait is bounded by the queue timeout that the core enforces.
"""

from __future__ import annotations

import asyncio

from limiter.core.effects import Granted, Rejected
from limiter.core.events import Acquire, Cancel, Tick
from limiter.core.reasons import RejectReason
from limiter.server.hub import Hub

__all__ = ["UnaryCalls"]

_BACKSTOP_S = 5.0
"""The core answers at the queue timeout; a call that waits for this much longer looks itself."""

Ending = Granted | Rejected


class UnaryCalls:
    """Waits for grants on behalf of unary calls. Attaches itself to its hub."""

    def __init__(self, hub: Hub) -> None:
        self.hub = hub
        self._waiting: dict[tuple[str, str], list[asyncio.Future[Ending]]] = {}
        hub.unary = self

    @property
    def waiting(self) -> int:
        """How many calls wait now."""
        return sum(len(futures) for futures in self._waiting.values())

    async def acquire(self, event: Acquire) -> Ending:
        """Applies `event` and waits for its end."""
        key = (event.session_id, event.request_id)
        if self.hub.closed:
            return _shutting_down(*key)
        future: asyncio.Future[Ending] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(key, []).append(future)
        delivered = False
        try:
            self.hub.apply(event)
            await asyncio.wait([future], timeout=event.queue_timeout + _BACKSTOP_S)
            if not future.done():
                self.hub.apply(Tick())  # the process was stopped: what is due has not happened yet
            ending = future.result()
            delivered = True
            return ending
        finally:
            futures = self._waiting.get(key, [])
            if future in futures:
                futures.remove(future)
            if not futures:
                self._waiting.pop(key, None)
            if not delivered and not futures:
                # The caller is gone, so nobody will use the grant. Safe to repeat: cancelling is idempotent.
                self.hub.apply(Cancel(event.session_id, event.request_id, event.attempt))

    def deliver(self, effect: Ending) -> None:
        """Ends the waits for one request."""
        for future in self._waiting.pop((effect.session_id, effect.request_id), ()):
            if not future.done():
                future.set_result(effect)

    def close(self) -> None:
        """Ends every wait: the limiter is going away."""
        for key in list(self._waiting):
            self.deliver(_shutting_down(*key))


def _shutting_down(session_id: str, request_id: str) -> Rejected:
    message = "the limiter is shutting down"
    return Rejected(session_id, request_id, 0, RejectReason.SHUTTING_DOWN, message, 1.0)
