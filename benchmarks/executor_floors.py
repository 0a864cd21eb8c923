"""What no design of this shape can be below: a fork that runs a program or a script, and a gRPC call that does nothing.

`python -m benchmarks.executor_floors PORT` is the server of such calls.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

import grpc
import grpc.aio

from benchmarks.executor_server import INTERPRETER
from executor_service.sandbox.inside.exercises import EXERCISES
from fairbox.ports import free_port

__all__ = ["BARE", "PRINTS", "Echo", "ScriptFloor", "echo", "forks", "script_floor"]

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
_SCRIPT = """
import gc, json, os, resource, statistics, sys, time
for text in {exercises!r}: exec(text, {{"__name__": "__main__"}})
gc.collect()
gc.freeze()
code, sink, times = compile({code!r}, "main.py", "exec"), open(os.devnull, "w"), []
def used():
    both = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in both)
def fork():
    pid = os.fork()
    if pid == 0:
        sys.stdout = sink
        exec(code, {{"__name__": "__main__"}})
        sink.flush()
        os._exit(0)
    os.waitpid(pid, 0)
fork()
before = used()
for _ in range({runs}):
    began = time.perf_counter()
    fork()
    times.append(time.perf_counter() - began)
print(json.dumps([statistics.median(times) * 1e3, (used() - before) * 1e3 / {runs}]))
"""
_METHOD = "/fairbox.benchmarks.Echo/Echo"
_START_WITHIN_S = 30.0

Echo = grpc.aio.UnaryUnaryMultiCallable


async def forks(child: str, runs: int) -> None:
    """An interpreter with nothing loaded forks `runs` times; each child runs the source `child` and exits."""
    code = _FORKS.format(child=child, runs=runs)
    process = await asyncio.create_subprocess_exec(INTERPRETER, "-I", "-c", code, env={})
    assert await process.wait() == 0


@dataclass(frozen=True)
class ScriptFloor:
    """Of a script in a fork of an interpreter that has its packages loaded and used: no service, no isolation."""

    p50_ms: float
    cpu_ms: float


async def script_floor(packages: Sequence[str], code: str, runs: int) -> ScriptFloor:
    """One fork after the other."""
    text = _SCRIPT.format(exercises=[EXERCISES[package] for package in packages], code=code, runs=runs)
    pipe = asyncio.subprocess.PIPE
    one_thread = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    process = await asyncio.create_subprocess_exec(INTERPRETER, "-c", text, stdout=pipe, env=one_thread)
    output, _ = await process.communicate()
    assert process.returncode == 0, code
    return ScriptFloor(*json.loads(output))


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
