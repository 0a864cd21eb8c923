"""A transport that can be cut: what a broken connection looks like from the client's side, whatever carries it."""

from __future__ import annotations

import asyncio
from typing import Any

from limiter.client.transport import Connection, ConnectionLost, Transport
from limiter.v1 import limiter_pb2 as pb


class Cuttable:
    """Passes everything on to another transport until `cut()`; connects again after `mend()`."""

    def __init__(self, inner: Transport) -> None:
        self.target = inner.target
        self._inner = inner
        self._up = asyncio.Event()
        self._up.set()
        self._cut: asyncio.Future[None] | None = None

    def cut(self) -> None:
        """Loses the connection that is open now."""
        self._up.clear()
        if self._cut is not None and not self._cut.done():
            self._cut.set_result(None)

    def mend(self) -> None:
        """Lets connections be opened again."""
        self._up.set()

    async def connect(self) -> Connection:
        """Waits for the network."""
        await self._up.wait()
        self._cut = asyncio.get_running_loop().create_future()
        return _Connection(await self._inner.connect(), self._cut)

    async def close(self) -> None:
        """Closes the other transport."""
        await self._inner.close()


class _Connection:
    def __init__(self, inner: Connection, cut: asyncio.Future[None]) -> None:
        self._inner = inner
        self._cut = cut

    async def send(self, frame: pb.SessionRequest) -> None:
        if self._cut.done():
            raise ConnectionLost("cut by the test")
        await self._inner.send(frame)

    async def receive(self) -> pb.SessionResponse:
        reading = asyncio.ensure_future(self._inner.receive())
        either: set[asyncio.Future[Any]] = {reading, self._cut}
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if self._cut.done():
                raise ConnectionLost("cut by the test")
            return await reading
        finally:
            reading.cancel()
            await asyncio.wait([reading])
            if not reading.cancelled():
                reading.exception()

    async def finish(self) -> None:
        await self._inner.finish()

    async def close(self) -> None:
        await self._inner.close()
