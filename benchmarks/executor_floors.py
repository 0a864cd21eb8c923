"""What no design of this shape can be below: a fork that runs a program, and a gRPC call that does nothing.

`python -m benchmarks.executor_floors PORT` is the server of such calls.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator

import grpc
import grpc.aio

from benchmarks.executor_server import INTERPRETER
from fairbox.ports import free_port

__all__ = ["BARE", "PRINTS", "Echo", "echo", "forks"]

BARE = "pass"
PRINTS = "exec(code, {}); sys.stdout.flush()"
_FORKS = """
import os, sys
sys.stdout = open(os.devnull, "w")
code = compile("print(1)", "main.py", "exec")
def child(): {child}
child()
for _ in range({runs}):
    pid = os.fork()
    if pid == 0:
        child()
        os._exit(0)
    os.waitpid(pid, 0)
"""
_METHOD = "/fairbox.benchmarks.Echo/Echo"
_START_WITHIN_S = 30.0

Echo = grpc.aio.UnaryUnaryMultiCallable


async def forks(child: str, runs: int) -> None:
    """An interpreter with nothing loaded forks `runs` times; each child runs the source `child` and exits."""
    code = _FORKS.format(child=child, runs=runs)
    process = await asyncio.create_subprocess_exec(INTERPRETER, "-I", "-c", code, env={})
    assert await process.wait() == 0


@contextlib.asynccontextmanager
async def echo() -> AsyncIterator[Echo[bytes, bytes]]:
    """A call that answers what it is given, from a process of its own."""
    port = free_port()
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", "benchmarks.executor_floors", str(port))
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            call: Echo[bytes, bytes] = channel.unary_unary(_METHOD)
            async with asyncio.timeout(_START_WITHIN_S):
                await call(b"", wait_for_ready=True)
            yield call
    finally:
        process.terminate()
        await process.wait()


async def _answer(request: bytes, _: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
    return request


async def _serve(port: int) -> None:
    server = grpc.aio.server()
    _, service, method = _METHOD.split("/")
    handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_unary_rpc_method_handler(_answer)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {method: handler}),))
    server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(_serve(int(sys.argv[1])))
