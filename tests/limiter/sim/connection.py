"""A connection of the simulated network: two ends, and a pipe each way that keeps the order.

Each end learns by itself that the connection is dead: by a reset from the other side, or because a ping is not answered
in time, as with gRPC's keepalive. Until then it looks alive, whatever has become of the other side.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

from tests.limiter.sim.loop import Process
from tests.limiter.sim.network import Network

_WINDOW = 32
"""Messages on their way in one direction before a sender has to wait."""
_PING_EVERY_S = 10.0
_PONG_WITHIN_S = 4.0
"""As in fairbox.net.channels."""
_RETRY_WITHIN_S = 1.0
"""Once a way is open again, what waited is sent again within this time."""
_SYN, _PING, _PONG, _FIN, _RESET = "syn", "ping", "pong", "fin", "reset"


class Broken(Exception):
    """The connection has ended."""


class End:
    """One end of a connection. Its public coroutines are for its own process."""

    def __init__(self, network: Network, name: str, process: Process | None) -> None:
        self.name = name
        self.process = process
        """None until it is accepted."""
        self.open = True
        self._network = network
        self._finished = False
        self._peer: End | None = None
        self._inbox: deque[Any] = deque()
        self._outbox: deque[tuple[float, Any]] = deque()
        self._moving = False
        self._changed = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def peer(self) -> End:
        """The other end."""
        assert self._peer is not None
        return self._peer

    def connect(self, peer: End) -> None:
        """Makes the two ends of one connection."""
        self._peer, peer._peer = peer, self

    def established(self) -> None:
        """The connection is up, as far as this end knows."""
        self._network.ends[self] = None
        self._timer = self._network.loop.call_later(_PING_EVERY_S, self._ping)

    async def send(self, message: Any) -> None:
        """Sends; waits while too much is on its way. Broken when the connection has ended."""
        await asyncio.sleep(0)
        while self.open and len(self._outbox) >= _WINDOW:
            await self._change()
        if not self.open or self._finished:
            raise Broken("the connection was lost")
        self._push(message)

    async def receive(self) -> Any:
        """The next message. Broken at the end."""
        while not self._inbox:
            if not self.open:
                raise Broken("the connection was lost")
            await self._change()
        if self._inbox[0] is _FIN:
            raise Broken("the stream has ended")
        return self._inbox.popleft()

    def put_back(self, message: Any) -> None:
        """The next message is this one, which was received."""
        self._inbox.appendleft(message)

    def finish(self) -> None:
        """Nothing more will be sent. Idempotent."""
        if self.open and not self._finished:
            self._finished = True
            self._push(_FIN)

    def abort(self) -> None:
        """Ends the connection at once and tells the other side; what is on its way may be lost. Idempotent."""
        if self.open:
            if self._network.rng.random() < 0.3:
                self.lose_outbox()
            self._push(_RESET)
            self.fail()

    def fail(self) -> None:
        """The connection is dead for this end; nobody is told. Idempotent."""
        self.open = False
        self._network.ends.pop(self, None)
        self._changed.set()
        if self._timer is not None:
            self._timer.cancel()

    def lose_outbox(self) -> None:
        """Messages on their way from here are lost."""
        while len(self._outbox) > 1:
            self._outbox.pop()
        if self._outbox:
            self._outbox[0] = (self._outbox[0][0], None)

    # Internal

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    def _push(self, message: Any) -> None:
        now = self._network.loop.true_time
        ready = now + self._network.delay(self.name, self.peer.name)
        if self._outbox:
            ready = max(ready, self._outbox[-1][0] + 1e-6)
        self._outbox.append((ready, message))
        if not self._moving:
            self._moving = True
            self._network.loop.after(ready - now, self._arrive)

    def _arrive(self) -> None:
        """The first message of the outbox gets to the other side, or has to be sent again."""
        network, peer = self._network, self.peer
        now = network.loop.true_time
        blocked = network.blocked_until(self.name, peer.name)
        if blocked > now:
            network.loop.after(blocked - now + network.rng.random() * _RETRY_WITHIN_S, self._arrive)
            return
        _, message = self._outbox.popleft()
        if self._outbox:
            network.loop.after(max(0.0, self._outbox[0][0] - now), self._arrive)
        else:
            self._moving = False
        self._changed.set()
        if message is None or peer.name in network.down:
            return
        network.trace.message(self.name, peer.name, message)
        if message is _SYN:
            self._accepted()
        elif peer.open and peer.process is not None:
            network.loop.hand_over(peer.process, peer._received, message)
        elif message is not _RESET:
            peer._push(_RESET)

    def _accepted(self) -> None:
        peer, listener = self.peer, self._network.listener(self.peer.name)
        if listener is None:
            peer._push(_RESET)
            return
        peer.process, accept = listener
        self._network.loop.hand_over(peer.process, peer.established)
        self._network.loop.hand_over(peer.process, accept, peer)

    def _received(self, message: Any) -> None:
        if not self.open:
            return
        if message is _RESET:
            self.fail()
        elif message is _PING:
            self._push(_PONG)
        elif message is _PONG:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._network.loop.call_later(_PING_EVERY_S, self._ping)
        else:
            self._inbox.append(message)
            self._changed.set()

    def _ping(self) -> None:
        self._push(_PING)
        self._timer = self._network.loop.call_later(_PONG_WITHIN_S, self.abort)


def dial(network: Network, process: Process, service: str) -> End:
    """Opens a connection; whether anybody is there shows when it is used."""
    mine, theirs = End(network, process.name, process), End(network, network.resolve(service), None)
    mine.connect(theirs)
    if process.dead:
        mine.fail()
        return mine
    mine.established()
    mine._push(_SYN)
    return mine
