"""A network between two processes of one machine that can stall, delay, cut one way, and reset.

What a cut holds back arrives when it ends, as TCP's own retransmissions would bring it.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from types import TracebackType

_CHUNK = 65536
_RESET = struct.pack("ii", 1, 0)
"""SO_LINGER that makes closing send RST."""


class Direction:
    """One way through the proxy."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        """Cleared: nothing passes."""
        self.open.set()
        self.delay_s = 0.0

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Until the end of the stream, or until its other side can't be written to."""
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(_CHUNK):
                await asyncio.sleep(self.delay_s)
                await self.open.wait()
                writer.write(data)
                await writer.drain()
            await self.open.wait()


class Proxy:
    """`async with Proxy(port) as proxy`: what connects to `proxy.address` reaches 127.0.0.1:port."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._server: asyncio.Server | None = None
        self._writers: dict[asyncio.StreamWriter, None] = {}
        self._serving: set[asyncio.Task[None]] = set()
        self.address = ""
        self.up, self.down = Direction(), Direction()

    async def __aenter__(self) -> Proxy:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._server is not None:
            self._server.close()
        for task in self._serving:
            task.cancel()
        if self._serving:
            await asyncio.wait(self._serving)

    def lose(self) -> None:
        """Open connections carry nothing any more and are not reset, as when a machine is lost; new connections
        work."""
        self.up.open.clear()
        self.down.open.clear()
        self.up, self.down = Direction(), Direction()

    def heal(self) -> None:
        """Everything passes at once."""
        for direction in (self.up, self.down):
            direction.delay_s = 0.0
            direction.open.set()

    def reset(self) -> None:
        """Ends every connection with RST, and drops what was on its way."""
        for writer in self._writers:
            connection: socket.socket | None = writer.get_extra_info("socket")
            if connection is not None:
                with contextlib.suppress(OSError):
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        self._writers[writer] = None
        far_writer: asyncio.StreamWriter | None = None
        # Its cancellation ends here: asyncio.streams reports a cancelled handler as a failure.
        with contextlib.suppress(OSError, asyncio.CancelledError):
            try:
                far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._port)
                self._writers[far_writer] = None
                ways = [
                    asyncio.create_task(self.up.carry(reader, far_writer)),
                    asyncio.create_task(self.down.carry(far_reader, writer)),
                ]
                try:
                    await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    for way in ways:
                        way.cancel()
                    await asyncio.wait(ways)
            finally:
                for each in (writer, far_writer):
                    if each is not None:
                        self._writers.pop(each, None)
                        each.close()
                self._serving.discard(task)
