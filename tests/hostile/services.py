"""An executor with its gateway, a limiter and a capture gateway, as those meet them who mean harm; and what holds
whatever was sent.

Held after each input: all health services answered all the while, a neighbour's run, lease and turn come, memory of the
servers is what it was, no result is masked as INFRA, no call fails as ours do, and no log has a traceback.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import io
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import grpc.aio
from google.protobuf import message_factory
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import Message

from executor_service.v1 import executor_pb2 as pb
from fairbox.net.channels import open_channel
from fairbox.net.ports import free_ports
from limiter.v1 import limiter_pb2
from limiter.wire import session_of
from tests.executor.servers import ROOT, START_WITHIN_S, running, wait_for

RPCS: dict[str, MethodDescriptor] = {
    method.name if service.name != "LimiterAdminService" else f"Admin{method.name}": method
    for file in (pb.DESCRIPTOR, limiter_pb2.DESCRIPTOR)
    for service in file.services_by_name.values()
    for method in service.methods
}
"""Every RPC of both services by its name; those of operators begin with `Admin`."""
GROWTH = 1.10
"""Largest allowed ratio of a server's memory to its memory when it was warm."""
ANSWERS_WITHIN_S = 60.0
"""One call, hostile or a neighbour's."""
OURS = ("INTERNAL", "UNKNOWN", "DATA_LOSS", "UNAVAILABLE", "DEADLINE_EXCEEDED")
"""Statuses that no input may earn: they say that the service did not do its job."""
_NOTHING = [limiter_pb2.Acquire()] * 90_000
"""As many requests as one frame may have, about."""
_CAPTURED = ("/t/", "/v1/chat", "/v1/models", "/statistics", "/health")
"""Beginnings of the paths of the capture gateway; all others are those of the executor's."""
_PULSE = """
import contextlib, os, sys, time, urllib.request, grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
if sys.argv[1].startswith("http"):
    ask = lambda: urllib.request.urlopen(sys.argv[1], timeout=60).read()
else:
    stub = health_pb2_grpc.HealthStub(grpc.insecure_channel(sys.argv[1]))
    ask = lambda: stub.Check(health_pb2.HealthCheckRequest(), timeout=60)
def starved():
    seconds = 0.0
    for thread in os.listdir(f"/proc/{sys.argv[2]}/task"):
        with contextlib.suppress(OSError), open(f"/proc/{sys.argv[2]}/task/{thread}/schedstat") as file:
            seconds += int(file.read().split()[1]) / 1e9
    return seconds
while True:
    began, before = time.monotonic(), starved()
    try: ask()
    except (grpc.RpcError, OSError): took = 60.0
    else: took = max(time.monotonic() - began - starved() + before, 0.0)
    print(f"{began} {took}", flush=True)
    time.sleep(0.02)
"""
"""Asks a health service in a process of its own, and says when it asked and how long the answer took, less what threads
of that server were ready and had no processor: it is not to blame for what else the machine does."""


@dataclasses.dataclass
class Watched:
    """A server's process, its log, and another process that asks for its health all the while."""

    pid: int
    log: Path
    pulse: Path
    resident: int = 0
    """Bytes when it was warm."""
    read: int = 0
    """Bytes of its log that were looked at."""
    heard: int = 0
    """The same of what that other process said."""

    def memory(self) -> int:
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def waits(self, since: float) -> list[float]:
        """Seconds that answers of its health took that came since then; waits for one that is asked for now."""
        asked, found = time.monotonic(), [(0.0, 0.0)]

        def answered() -> bool:
            with self.pulse.open() as file:
                file.seek(self.heard)
                lines = [line for line in file.read().splitlines(keepends=True) if line.endswith("\n")]
            self.heard += sum(map(len, lines))
            found.extend((float(began), float(took)) for began, took in map(str.split, lines))
            return found[-1][0] >= asked

        wait_for(answered, ANSWERS_WITHIN_S)
        return [took for began, took in found[1:] if began + took >= since]

    def complaints(self) -> str:
        """Returns the tracebacks that its log has gained since the last look."""
        text = self.log.read_bytes()
        new, self.read = text[self.read :].decode(errors="replace"), len(text)
        at = min((new.find(word) for word in ("Traceback", "never retrieved", "Exception") if word in new), default=-1)
        return "" if at < 0 else new[max(at - 200, 0) : at + 3000]


@dataclasses.dataclass
class Services:
    """All, started."""

    executor: str
    gateway: str
    limiter: str
    admin: str
    capture: str
    watched: tuple[Watched, ...]

    def address(self, name: str) -> str:
        """Address that serves the RPC of that name."""
        if name.startswith("Admin"):
            return self.admin
        return self.limiter if "limiter" in RPCS[name].full_name else self.executor

    async def call(self, name: str, *sent: Message | bytes, within_s: float = ANSWERS_WITHIN_S) -> list[Any]:
        """Sends messages, or the bytes of such, to an RPC: what comes back, at its end the name of its status."""
        async with open_channel(self.address(name), [("grpc.max_send_message_length", -1)]) as channel:
            return await called(channel, name, *sent, within_s=within_s)

    def url(self, path: str) -> str:
        """URL of a path of either gateway."""
        return f"http://{self.capture if path.startswith(_CAPTURED) else self.gateway}{path}"

    async def http(self, method: str, path: str, body: bytes, headers: dict[str, str]) -> list[Any]:
        """Sends a request to a gateway: its status, and the body of its answer."""
        timeout = aiohttp.ClientTimeout(total=ANSWERS_WITHIN_S)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            headers = {"Content-Type": "application/json", **headers}
            async with session.request(method, self.url(path), data=io.BytesIO(body), headers=headers) as answer:
                return [answer.status, await answer.text(errors="replace")]

    async def serve_a_neighbour(self) -> None:
        """A run of another tenant, a lease of another client, a turn of another trajectory: all have to end well."""
        request = pb.ExecuteCodeRequest(code="print(6 * 7)", tenant="neighbour")
        answer, status = await self.call("ExecuteCode", request)
        assert (status, answer.result.stdout.data) == ("OK", b"42\n"), answer
        ask = limiter_pb2.AcquireTokenRequest(
            bucket="code", client_id=uuid.uuid4().hex, request_id="1", queue_timeout_s=20, tenant="neighbour"
        )
        granted = await self.call("AcquireToken", ask)
        assert granted[-1] == "OK", granted
        release = limiter_pb2.ReleaseTokenRequest(client_id=ask.client_id, request_id="1")
        assert (await self.call("ReleaseToken", release))[-1] == "OK"
        path, body = (
            f"/t/{ask.client_id}",
            b'{"model": "scripted", "messages": [{"role": "user", "content": "2 + 2?"}]}',
        )
        for method, rest in (("POST", "/v1/chat/completions"), ("GET", ""), ("DELETE", "")):
            answered = await self.http(method, path + rest, body, {})
            assert answered[0] == 200, answered

    async def warm(self) -> None:
        """Runs a little of everything, so that memory is what it stays."""
        secret, kind = "w" * 32, limiter_pb2.SESSION_KIND_CLIENT
        said = limiter_pb2.Hello(session_id=session_of(secret), secret=secret, kind=kind)
        hello = limiter_pb2.SessionRequest(hello=said)
        for _ in range(3):
            await self.serve_a_neighbour()
            await self.call("ExecuteCode", pb.ExecuteCodeRequest(code="1", display=True, stdin=bytes(8 << 20)))
            case = pb.VerifyCase(stdio=pb.StdioCase(expected_stdout=b"1"))
            await self.call(
                "VerifyCode", pb.VerifyCodeRequest(code="print(1)", style=pb.VERIFY_STYLE_STDIO, cases=[case])
            )
            await self.http("POST", "/run_code", b'{"code": "print(1)"}', {})
            await self.call("Session", hello, limiter_pb2.SessionRequest(acquires=_NOTHING))
        self.settle()
        for each in self.watched:
            each.complaints()

    def grown(self, most: float = GROWTH) -> str:
        """Names a server whose memory has grown beyond `most` times its earlier size; empty if none has."""
        for each in self.watched:
            with contextlib.suppress(AssertionError):
                wait_for(lambda each=each: each.memory() <= each.resident * most, 3.0)
            if each.memory() > each.resident * most:
                return f"{each.log.stem}: {each.memory() >> 20} MiB, and {each.resident >> 20} before"
        return ""

    def settle(self) -> None:
        """Takes what they hold now as what they are to hold."""
        for each in self.watched:
            each.resident = max(each.resident, each.memory())

    async def check(self, since: float, most_s: float) -> list[float]:
        """AssertionError for what does not hold after what was sent since then; `most_s` is the longest wait for an
        answer of a health service. Returns those waits."""
        waits = []
        for each in self.watched:
            waits += await asyncio.to_thread(each.waits, since)
        assert max(waits) <= most_s, f"health answered after {max(waits):.2f} s"
        await self.serve_a_neighbour()
        for each in self.watched:
            assert not (text := each.complaints()), text
        return waits


async def called(
    channel: grpc.aio.Channel, name: str, *sent: Message | bytes, within_s: float = ANSWERS_WITHIN_S
) -> list[Any]:
    """As `Services.call`, on a connection that is there."""
    method = RPCS[name]
    path = f"/{method.containing_service.full_name}/{method.name}"
    parse = message_factory.GetMessageClass(method.output_type).FromString
    data = [each if isinstance(each, bytes) else each.SerializeToString() for each in sent]
    got: list[Any] = []
    try:
        if method.server_streaming:
            kind = channel.stream_stream if method.client_streaming else channel.unary_stream
            call: Any = kind(path, response_deserializer=parse)
            async for each in call(iter(data) if method.client_streaming else data[0], timeout=within_s):
                got.append(each)  # noqa: PERF401 - those before an error count too
        else:
            call = channel.unary_unary(path, response_deserializer=parse)
            got.append(await call(data[0], timeout=within_s))
    except grpc.aio.AioRpcError as error:
        # gRPC says this of a message that could not be sent any more, since the call is over.
        ended = error.details() == "Internal error from Core"
        return [*got, error.details() or "", "OVER" if ended else error.code().name]
    return [*got, "OK"]


def infra(message: Message) -> bool:
    """Says whether a result in the message blames the infrastructure, not the code."""
    return "cause: CAUSE_INFRA" in str(message)


@contextlib.contextmanager
def _pulse(health: str, pid: int, to: Path) -> Iterator[None]:
    command = [sys.executable, "-c", _PULSE, health, str(pid)]
    with to.open("w") as file, subprocess.Popen(command, stdout=file) as process:
        try:
            yield
        finally:
            process.kill()


@contextlib.contextmanager
def started(folder: Path, *settings: str) -> Iterator[Services]:
    """All services, with small bounds; killed at the end, since what came before may have frozen them."""
    logs = [folder / f"{name}-{uuid.uuid4().hex[:6]}.log" for name in ("executor", "limiter", "capture")]
    pulses = [log.with_suffix(".pulse") for log in logs]
    gateway, capture, *ports = (f"127.0.0.1:{port}" for port in free_ports(5))
    words = [f"{name}={port}" for name, port in zip(("listen", "admin_listen", "health_listen"), ports, strict=True)]
    words += ["metrics_listen=", "fresh=true", "buckets.code.max_in_flight=1000000", "buckets.code.start_by_s=1"]
    to_log = ["sh", "-c", 'exec "$@" 2>"$0"']
    own = ["max_concurrent=4", "max_sessions=16", f"gateway_listen={gateway}"]
    with contextlib.ExitStack() as stack:
        executor = stack.enter_context(running(*own, *settings, prefix=[*to_log, str(logs[0])]))
        stack.callback(executor.process.kill)
        others = [
            stack.enter_context(subprocess.Popen([*to_log, str(log), sys.executable, "-m", *command], cwd=ROOT))
            for log, command in zip(logs[1:], (["limiter", *words], ["tests.hostile.capture", capture]), strict=True)
        ]
        for process, log in zip(others, logs[1:], strict=True):
            stack.callback(process.kill)
            wait_for(lambda log=log: log.exists() and b"listening on" in log.read_bytes(), START_WITHIN_S)
        healths = (executor.health, ports[2], f"http://{capture}/health")
        pids = (executor.pid, *(process.pid for process in others))
        for health, pid, pulse in zip(healths, pids, pulses, strict=True):
            stack.enter_context(_pulse(health, pid, pulse))
        watched = tuple(Watched(*each) for each in zip(pids, logs, pulses, strict=True))
        yield Services(executor.target, gateway, ports[0], ports[1], capture, watched)
