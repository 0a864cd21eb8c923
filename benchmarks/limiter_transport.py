"""What a limiter over gRPC for Python can't be below: the stream of the real one, and no rules at all.

`python -m benchmarks.limiter_transport PORT` is the server: a count and a queue behind `LimiterService.Session`, asked
by the real client, one frame in and one frame out in turn. Beside the plain TCP server it shows what gRPC costs; beside
the limiter, what the rules cost.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import sys
from collections import deque
from collections.abc import AsyncIterator

import grpc.aio

from benchmarks.limiter_server import LIMIT, ROOT, START_WITHIN_S
from fairbox.channels import server_options
from limiter.v1 import limiter_pb2 as pb
from limiter.v1 import limiter_pb2_grpc
from rollout.stack import StackPorts

__all__ = ["transport_server"]

_TTL_S = 6.0


class _Transport(limiter_pb2_grpc.LimiterServiceServicer):
    """Grants to one stream, in the order in which it asks."""

    async def Session(  # type: ignore[override]  # noqa: N802 - it reads and writes through the context
        self, request_iterator: object, context: grpc.aio.ServicerContext[pb.SessionRequest, pb.SessionResponse]
    ) -> None:
        """Until the client closes its stream."""
        queue: deque[tuple[str, int]] = deque()
        free, numbers, session_id = LIMIT, itertools.count(1), ""
        while isinstance(frame := await context.read(), pb.SessionRequest):
            out = pb.SessionResponse()
            if frame.HasField("hello"):
                session_id = frame.hello.session_id
                out.welcome.CopyFrom(pb.Welcome(epoch=1, ttl_s=_TTL_S))
            free += len(frame.releases)
            queue.extend((acquire.request_id, acquire.attempt) for acquire in frame.acquires)
            while free and queue:
                free -= 1
                request_id, attempt = queue.popleft()
                grant = out.grants.add()
                grant.request_id, grant.attempt, grant.start_by_s = request_id, attempt, 5.0
                lease = grant.lease
                lease.bucket, lease.epoch, lease.seq, lease.client_session_id = "code", 1, next(numbers), session_id
            await context.write(out)


@contextlib.asynccontextmanager
async def transport_server() -> AsyncIterator[tuple[int, str]]:
    """The server's pid and address."""
    address = StackPorts.free().limiter
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "benchmarks.limiter_transport", address, cwd=ROOT, stdout=asyncio.subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(START_WITHIN_S):
            await process.stdout.readline()
        yield process.pid, address
    finally:
        process.kill()
        await process.communicate()


async def _serve(address: str) -> None:
    server = grpc.aio.server(options=server_options())
    limiter_pb2_grpc.add_LimiterServiceServicer_to_server(_Transport(), server)  # type: ignore[abstract]  # only the stream is measured
    server.add_insecure_port(address)
    await server.start()
    print("READY", flush=True)
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(_serve(sys.argv[1]))
