"""Life of a request, up to the server's end: repetition, cancellation, overload, drain, crash, and nothing left."""

from __future__ import annotations

import asyncio
import os
import signal
from functools import partial

import pytest
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from executor_service import (
    Cause,
    ExecutionResult,
    ExecutorClient,
    ExecutorUnavailable,
    InvalidRequest,
    Limits,
    Outcome,
    OutputChunk,
    Stream,
)
from executor_service.v1 import executor_pb2 as pb
from fairbox.net.channels import open_channel
from tests.executor.servers import (
    Server,
    boxes,
    children,
    descriptors,
    each_refused,
    exists,
    groups_left,
    held,
    idle,
    let_go,
    marked,
    parent,
    processes_with,
    running,
    sandbox_mounts,
    server_groups_left,
    wait_for,
)

SLEEP = "import time; print('started', flush=True); time.sleep(600)"
ONCE = "import uuid; print(uuid.uuid4())"
UNSEEN = ("relative", "/", "/nowhere", "/tmp", "/dev/shm")
"""Toolchain folders that can't be shown to programs."""


async def test_a_repeated_request_id_returns_the_stored_result(executor: ExecutorClient, server: Server) -> None:
    before = server.status().deduplicated_total
    first = await executor.execute(ONCE, request_id="repeat-1")
    second = await executor.execute(ONCE, request_id="repeat-1")
    assert (first.deduplicated, second.deduplicated) == (False, True)
    assert first.stdout.data == second.stdout.data
    assert server.status().deduplicated_total == before + 1


async def test_concurrent_calls_with_one_request_id_run_once(executor: ExecutorClient) -> None:
    calls = (executor.execute(f"{ONCE}; import time; time.sleep(0.5)", request_id="join-1") for _ in range(10))
    results = await asyncio.gather(*calls)
    assert len({result.stdout.data for result in results}) == 1
    assert sorted(result.deduplicated for result in results) == [False] + [True] * 9


async def test_a_request_id_with_another_request_is_refused(executor: ExecutorClient) -> None:
    await executor.execute("print(1)", request_id="other-1")
    with pytest.raises(InvalidRequest, match="request_id was used for another request") as caught:
        await executor.execute("print(2)", request_id="other-1")
    assert [field.field for field in caught.value.fields] == ["request_id"]


async def test_cancelling_the_only_call_kills_the_program(executor: ExecutorClient, server: Server) -> None:
    marker, args = marked()
    call = asyncio.create_task(executor.execute(SLEEP, args=args, request_id="cancel-1"))
    await asyncio.to_thread(wait_for, lambda: processes_with(marker))
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await asyncio.to_thread(wait_for, lambda: not processes_with(marker))
    await asyncio.to_thread(wait_for, lambda: server.status().running == 0)
    # It may have run, so the id is spent: the same result for whoever asks again.
    result = await executor.execute(SLEEP, args=args, request_id="cancel-1")
    assert (result.outcome, result.cause, result.deduplicated) == (Outcome.CANCELLED, Cause.INFRA, True)


async def test_a_joined_run_survives_the_cancellation_of_one_call(executor: ExecutorClient, server: Server) -> None:
    before = server.status().deduplicated_total
    marker, code = held()
    first = asyncio.create_task(executor.execute(code, request_id="survive-1"))
    second = asyncio.create_task(executor.execute(code, request_id="survive-1"))
    await asyncio.to_thread(wait_for, lambda: server.status().deduplicated_total == before + 1)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    await executor.status()  # the server hears of the cancellation before this
    await asyncio.to_thread(let_go, marker)
    assert (await second).stdout.data == b"begun\ndone\n"


async def test_a_deadline_of_the_call_kills_the_program(executor: ExecutorClient) -> None:
    marker, args = marked()
    with pytest.raises(ExecutorUnavailable):
        await executor.execute(SLEEP, args=args, call_timeout=1)
    await asyncio.to_thread(wait_for, lambda: not processes_with(marker))


def test_killing_the_server_kills_every_program() -> None:
    marker, args = marked()
    code = """
import os, signal, sys, time
for _ in range(2):
    if os.fork() == 0:
        os.setsid()
        for number in range(1, 32):
            try: signal.signal(number, signal.SIG_IGN)
            except OSError: pass
time.sleep(600)
"""
    with running() as server:

        async def call() -> None:
            async with ExecutorClient(server.target) as executor:
                task = asyncio.create_task(executor.execute(code, args=args))
                await asyncio.to_thread(wait_for, lambda: len(processes_with(marker)) == 4)
                below = children(server.pid)
                server.process.kill()
                with pytest.raises(ExecutorUnavailable):
                    await task
                await asyncio.to_thread(wait_for, lambda: not processes_with(marker))
                await asyncio.to_thread(wait_for, lambda: not [pid for pid in below if exists(pid)])

        asyncio.run(call())


async def test_sigterm_lets_programs_end_and_refuses_new_ones() -> None:
    with running("drain_grace_s=20") as server:
        async with ExecutorClient(server.target) as executor:
            marker, code = held()
            running_one = asyncio.create_task(executor.execute(code))
            await asyncio.to_thread(wait_for, lambda: processes_with(marker))
            server.process.send_signal(signal.SIGTERM)
            await asyncio.to_thread(wait_for, lambda: server.status().draining)
            assert server.readiness() != 1
            with pytest.raises(ExecutorUnavailable, match="ending"):
                await executor.execute("1")
            await asyncio.to_thread(let_go, marker)
            assert (await running_one).stdout.data == b"begun\ndone\n"
        assert await asyncio.to_thread(server.process.wait, 20) == 0
        assert groups_left(server.pid) == []


async def test_the_drain_ends_and_kills_what_is_left() -> None:
    marker, args = marked()
    with running("drain_grace_s=0.3") as server:
        async with ExecutorClient(server.target) as executor:
            call = asyncio.create_task(executor.execute(SLEEP, args=args))
            events = executor.stream(SLEEP)
            assert await anext(events) == OutputChunk(Stream.STDOUT, b"started\n")
            await asyncio.to_thread(wait_for, lambda: processes_with(marker))
            server.process.send_signal(signal.SIGTERM)
            for result in (await call, *[event async for event in events]):
                assert isinstance(result, ExecutionResult)
                assert (result.outcome, result.cause) == (Outcome.CANCELLED, Cause.INFRA)
                assert result.message.startswith("Killed: ")
        assert await asyncio.to_thread(server.process.wait, 20) == 0
    assert processes_with(marker) == []
    assert server_groups_left(server.pid) == []


def loose(server: Server) -> int:
    """Descriptors of a server, without control socket, pidfd and three streams of each worker that waits."""
    while True:
        before = boxes(server)
        found = len(descriptors(server.pid))
        if boxes(server) == before:
            return found - 5 * before


async def test_200_runs_leave_nothing_behind(executor: ExecutorClient, server: Server) -> None:
    kinds = [
        ("print(1)", Limits()),
        ("import os\nfor _ in range(3): os.fork()", Limits()),
        ("import time; time.sleep(60)", Limits(wall_time_s=0.05)),
        ("import os; os.setsid() if os.fork() else None; os.kill(os.getpid(), 9)", Limits()),
        ("open('/tmp/x', 'wb').write(bytes(1 << 20)); raise SystemExit(3)", Limits()),
    ]
    await executor.execute("1")
    open_before = 0
    for part in range(4):
        runs = [kinds[i % len(kinds)] for i in range(50)]
        if part % 2:
            for code, limits in runs:
                await executor.execute(code, limits=limits)
        else:
            await asyncio.gather(*(executor.execute(code, limits=limits) for code, limits in runs))
        await asyncio.to_thread(wait_for, lambda: idle(server))
        if part == 0:
            open_before = loose(server)

    def clean() -> bool:
        groups = boxes(server) * len(server_groups_left(server.pid))
        return idle(server) and loose(server) <= open_before and len(groups_left(server.pid)) == groups

    await asyncio.to_thread(wait_for, clean)
    assert sandbox_mounts(server.pid) == []


async def test_status_shows_what_the_server_is_and_does(executor: ExecutorClient, server: Server) -> None:
    await executor.execute("print(1)")
    status = server.status()
    assert status.isolation_level == status.min_isolation_level == pb.ISOLATION_LEVEL_NAMESPACES
    strongest, other = status.isolation_levels
    assert strongest.available
    assert other.available is not bool(other.reason)  # whether an ordinary user may read the interpreter
    languages = {language.name: language for language in status.languages}
    assert languages["python"].installed
    assert languages["python"].version.startswith("Python 3.")
    assert "bash" in languages["bash"].version
    names = ("base", "lean", "numpy", "pandas", "science", "sympy")
    assert sorted(profile.name for profile in status.profiles) == [f"python-{name}" for name in names]
    assert (status.max_running, status.max_queued, status.limiter.target) == (4, 500, "none")
    assert status.default_limits.wall_time_s == 30
    assert status.max_limits.wall_time_s == 600
    assert status.outcomes["FINISHED"] >= 1
    assert not status.draining
    assert status.uptime_s > 0


async def test_reflection_lists_the_service(server: Server) -> None:
    async with open_channel(server.target) as channel:
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        request = reflection_pb2.ServerReflectionRequest(list_services="")
        call = stub.ServerReflectionInfo(iter([request]), timeout=10)
        answer = await anext(aiter(call))
        names = {service.name for service in answer.list_services_response.service}
        call.cancel()
    assert "executor_service.v1.ExecutorService" in names


async def test_an_unreachable_server_is_infrastructure() -> None:
    async with ExecutorClient("127.0.0.1:1") as executor:
        with pytest.raises(ExecutorUnavailable, match=r"127\.0\.0\.1:1") as caught:
            await executor.execute("1", call_timeout=10)
    assert caught.value.cause is Cause.INFRA


def test_a_bad_setting_is_one_sentence() -> None:
    settings = {
        "listen=0.0.0.0:0": "listen is '0.0.0.0:0', which is not loopback",
        "python=/nonexistent/python": "python is '/nonexistent/python', which does not run as a Python interpreter",
        "min_isolation=none": "min_isolation is 'none', must be one of: landlock, namespaces",
        "max_concurrent=0": "max_concurrent is 0, must be from 1",
        "limits.wall_time_s=700": "limits.wall_time_s is 700.0, must be above 0 and at most max_limits.wall_time_s",
        "limts.wall_time_s=7": "(limts.wall_time_s) is not a setting; did you mean limits.wall_time_s?",
        "isolation=landlock": "isolation is 'landlock', must be at least min_isolation (namespaces)",
        "isolation=docker": "isolation is 'docker', must be one of: auto, namespaces, landlock",
        "scratch=/no/such/folder": "scratch is '/no/such/folder', which can't be used",
        "profiles.python-base.lean=true": "profiles.python-base.lean is true, which python-base and one with",
        "profiles.x.lean=true profiles.x.packages=[numpy]": "profiles.x.lean is true, which python-base and one with",
        "profiles.python-base.modules=[numpy]": "profiles.python_base.modules",
    }
    settings |= {f"cgroups={each}": f"cgroups is {each!r}, must be auto, none or a path" for each in ("non", "/../x")}
    settings |= {f"toolchains=/usr:{folder}:": f"toolchains has {folder!r}, must be" for folder in UNSEEN}
    for said in each_refused(settings):
        # A machine with little memory says before how much programs can have.
        assert len([line for line in said.splitlines() if " INFO " not in line]) == 1, said


async def test_a_killed_zygote_is_started_again_and_programs_go_on() -> None:
    """Programs that come while there is none wait for the next."""
    with running() as server:
        async with ExecutorClient(server.target) as executor:
            for _ in range(3):
                marker, args = marked()
                caught = asyncio.create_task(executor.execute("import time; time.sleep(60)", args=args))
                await asyncio.to_thread(wait_for, partial(processes_with, marker))
                (zygote,) = processes_with(marker)
                while parent(zygote) != server.pid:
                    zygote = parent(zygote)
                os.kill(zygote, signal.SIGKILL)
                result, *others = await asyncio.gather(caught, *(executor.execute("print(2)") for _ in range(12)))
                assert (result.outcome, result.cause) == (Outcome.SANDBOX_ERROR, Cause.INFRA)
                assert not processes_with(marker)
                # One that had a sandbox when the zygote died is lost with it; one that had none waits for the next.
                assert all(other.ok or "'box'" in other.message for other in others), others
                assert (await executor.execute("print(2)")).stdout.data == b"2\n"
