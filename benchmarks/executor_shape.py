"""The floor of the executor's shape: the least that a confined Python program behind gRPC can cost here.

A call of grpc.aio, a worker that waits forked and confined, the program in it, its output, and the next worker. Each
slot has namespaces and a root of its own, made once; each program has a forked interpreter, a session, a uid, no
capabilities and the filter of system calls, and whatever it leaves is killed and reaped: all of that by the executor's
own code. Left out is what the executor does beside: checks, queue, lease, request ids, limits and what was used of
them, files, input, errors, the semantics of `python main.py`, proof that a folder is as it was, other languages, levels
and profiles, packages that are loaded.

`python -m benchmarks.executor_shape PORT SLOTS` is its server. It needs root.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import sys
from array import array
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import grpc.aio

from benchmarks.executor_server import INTERPRETER
from executor_service.sandbox.groups import GroupTree
from executor_service.sandbox.host import inspect_host
from executor_service.sandbox.seccomp import compile_filter
from fairbox.ports import free_port

__all__ = ["Shape", "shape"]

_HERE = Path(__file__).resolve()
_METHOD = "/fairbox.benchmarks.Shape/Run"
_START_WITHIN_S = 30.0

Shape = grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]
"""Takes a program, returns what it printed."""


@contextlib.asynccontextmanager
async def shape(slots: int) -> AsyncIterator[Shape]:
    """A server with `slots` workers that wait."""
    port = free_port()
    command = (sys.executable, "-m", "benchmarks.executor_shape", str(port), str(slots))
    process = await asyncio.create_subprocess_exec(*command)
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            call: Shape = channel.unary_unary(_METHOD)
            async with asyncio.timeout(_START_WITHIN_S):
                await call(b"print(1)", wait_for_ready=True)
            yield call
    finally:
        process.terminate()
        await process.wait()


class _Slots:
    def __init__(self, controls: list[socket.socket]) -> None:
        self._ready: asyncio.Queue[tuple[socket.socket, int]] = asyncio.Queue()
        for control in controls:
            asyncio.get_running_loop().add_reader(control, self._take, control)

    def _take(self, control: socket.socket) -> None:
        """The next worker of a slot waits."""
        message, extra, _, _ = control.recvmsg(16, 64)
        if not message:
            asyncio.get_running_loop().remove_reader(control)
            return
        data, out = array("i", extra[0][2])
        self._ready.put_nowait((socket.socket(fileno=data), out))

    async def run(self, source: bytes, _: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
        data, out = await self._ready.get()
        loop = asyncio.get_running_loop()
        ended = loop.create_future()
        data.send(source)
        loop.add_reader(data, ended.set_result, None)
        await ended
        loop.remove_reader(data)
        printed = os.read(out, 65536)
        data.close()
        os.close(out)
        return printed


async def _serve(port: int, slots: int) -> None:
    host = inspect_host(python=INTERPRETER, groups=GroupTree({}), seccomp=compile_filter(), boxes=slots)
    pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(slots)]
    ends = [end.fileno() for _, end in pairs]
    inside, executor = _HERE.with_name("executor_shape_inside.py"), _HERE.parents[1] / "executor_service"
    template = await asyncio.create_subprocess_exec(
        *(host.python, "-I", str(inside), str(executor), *map(str, ends)),
        stdin=asyncio.subprocess.PIPE,
        pass_fds=ends,
        env={},
    )
    for _, end in pairs:
        end.close()
    assert template.stdin is not None
    head = {"roots": [host.root(slot) for slot in range(slots)], "seccomp": host.seccomp.hex()}
    template.stdin.write(json.dumps(head).encode())
    template.stdin.close()
    server = grpc.aio.server()
    _, service, method = _METHOD.split("/")
    handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_unary_rpc_method_handler(
        _Slots([control for control, _ in pairs]).run
    )
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {method: handler}),))
    server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(_serve(int(sys.argv[1]), int(sys.argv[2])))
