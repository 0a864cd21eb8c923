"""What a limiter that speaks the same messages can't be below: plain TCP, asyncio and protobuf, and no rules at all.

`python -m benchmarks.limiter_floor PORT` is the server: a count, a queue, nothing else: no tickets, sessions, leases
that end, timeouts, errors or bounds. Frames are those of the session stream behind a length of four bytes; both ends
collect what comes up in one turn of their loop into one frame, as the real ones do.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import struct
import sys
from collections import deque
from collections.abc import AsyncIterator
from typing import Generic, TypeVar

from benchmarks.limiter_server import LIMIT, ROOT, START_WITHIN_S
from benchmarks.rows import Pair
from limiter.v1 import limiter_pb2 as pb
from rollout.stack import StackPorts

__all__ = ["FloorClient", "floor_server"]

_LENGTH = struct.Struct("!I")

Frame = TypeVar("Frame", pb.SessionRequest, pb.SessionResponse)


class _Peer(asyncio.Protocol, Generic[Frame]):
    """Cuts the stream into frames, and collects what is to be sent."""

    incoming: type[Frame]

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._scheduled = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        buffer = self._buffer
        buffer += data
        while len(buffer) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(buffer)
            end = _LENGTH.size + length
            if len(buffer) < end:
                return
            frame = self.incoming.FromString(bytes(buffer[_LENGTH.size : end]))
            del buffer[:end]
            self.received(frame)

    def schedule(self) -> None:
        """Sends what was collected at the end of this turn of the loop."""
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._scheduled = False
        data = self.collected()
        self._transport.write(_LENGTH.pack(len(data)) + data)

    def received(self, frame: Frame) -> None:
        raise NotImplementedError

    def collected(self) -> bytes:
        raise NotImplementedError


class _Floor:
    """The count and the queue."""

    def __init__(self) -> None:
        self.free = LIMIT
        self.queue: deque[tuple[_ServerPeer, str, int]] = deque()
        self.numbers = itertools.count(1)

    def pump(self) -> None:
        while self.free and self.queue:
            self.free -= 1
            peer, request_id, attempt = self.queue.popleft()
            peer.grant(request_id, attempt, next(self.numbers))


class _ServerPeer(_Peer[pb.SessionRequest]):
    incoming = pb.SessionRequest

    def __init__(self, floor: _Floor) -> None:
        super().__init__()
        self._floor = floor
        self._out = pb.SessionResponse()

    def received(self, frame: pb.SessionRequest) -> None:
        floor = self._floor
        floor.free += len(frame.releases)
        for acquire in frame.acquires:
            floor.queue.append((self, acquire.request_id, acquire.attempt))
        floor.pump()

    def grant(self, request_id: str, attempt: int, number: int) -> None:
        lease = pb.Lease(bucket="code", epoch=1, seq=number, client_session_id="client")
        self._out.grants.add(request_id=request_id, attempt=attempt, lease=lease, start_by_s=5.0)
        self.schedule()

    def collected(self) -> bytes:
        out, self._out = self._out, pb.SessionResponse()
        return out.SerializeToString()


class FloorClient(_Peer[pb.SessionResponse]):
    """`pair()` is an acquire and its release."""

    incoming = pb.SessionResponse

    def __init__(self) -> None:
        super().__init__()
        self._out = pb.SessionRequest()
        self._waiting: dict[str, asyncio.Future[pb.Lease]] = {}
        self._numbers = itertools.count(1)

    async def pair(self) -> None:
        number = next(self._numbers)
        future: asyncio.Future[pb.Lease] = asyncio.get_running_loop().create_future()
        self._waiting[str(number)] = future
        self._out.acquires.add(request_id=str(number), attempt=number, bucket="code", tokens=1, queue_timeout_s=60.0)
        self.schedule()
        lease = await future
        self._out.releases.add(lease=lease, outcome=pb.RELEASE_OUTCOME_OK)
        self.schedule()

    def received(self, frame: pb.SessionResponse) -> None:
        for grant in frame.grants:
            self._waiting.pop(grant.request_id).set_result(grant.lease)

    def collected(self) -> bytes:
        out, self._out = self._out, pb.SessionRequest()
        return out.SerializeToString()

    def close(self) -> None:
        self._transport.close()


@contextlib.asynccontextmanager
async def floor_server() -> AsyncIterator[tuple[int, Pair]]:
    """The server's pid, and a pair of a client of this process."""
    host, _, port = StackPorts.free().limiter.rpartition(":")
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "benchmarks.limiter_floor", port, cwd=ROOT, stdout=asyncio.subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(START_WITHIN_S):
            await process.stdout.readline()
        _, client = await asyncio.get_running_loop().create_connection(FloorClient, host, int(port))
        yield process.pid, client.pair
        client.close()
    finally:
        process.kill()
        await process.communicate()


async def _serve(port: int) -> None:
    floor = _Floor()
    server = await asyncio.get_running_loop().create_server(lambda: _ServerPeer(floor), "127.0.0.1", port)
    print("READY", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_serve(int(sys.argv[1])))
