"""Leases that nobody binds: for work where no executor can, such as a sandbox behind HTTP."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from urllib.error import HTTPError
from urllib.request import urlopen

import aiohttp
import grpc
import pytest
from aiohttp import web

from fairbox.errors import FieldErrors
from fairbox.net.ports import free_port
from limiter import ExecutorSession, LeaseRefused, LimiterClient, ReleaseOutcome
from limiter.config import BucketConfig, LimiterConfig
from limiter.core import BucketLimits, LeaseId, LimiterCore, SessionKind
from limiter.core.effects import Granted, Rejected, Released, Revoked
from limiter.core.events import Acquire, Bind, Cancel, Disconnect, HeldLease, Hello, Release, Revoke, Tick
from limiter.pool import ExecutionPool, FunctionFailed, RunTimeout
from limiter.server import LimiterServer
from limiter.v1 import limiter_pb2 as pb
from tests.limiter.cores import granted, lease_of, make_core, only, unknown
from tests.limiter.servers import ANYWHERE, code_of, unary_lease, unary_stub, until


def soft_core(limit: int = 1) -> LimiterCore:
    return make_core(limit, max_hold=60.0)


def hold(core: LimiterCore, seconds: float = 30.0, session: str = "c") -> LeaseId:
    return lease_of(core.handle(Acquire(session, "soft", hold=seconds), 0.0))


def test_a_client_that_returns_late_finds_it_and_releases_it() -> None:
    core = soft_core()
    lease = hold(core)
    core.handle(Disconnect("c"), 1.0)
    core.handle(Tick(), 10.0)
    core.handle(Hello("c", SessionKind.CLIENT, held=(HeldLease(lease, "code", "c"),)), 11.0)
    assert only(Released, core.handle(Release("c", lease), 12.0)).released
    assert core.statistics(12.0).held == 0


def test_a_hello_that_omits_it_frees_it() -> None:
    core = soft_core()
    hold(core)
    core.handle(Disconnect("c"), 1.0)
    core.handle(Tick(), 10.0)
    core.handle(Hello("c", SessionKind.CLIENT), 11.0)
    assert core.statistics(11.0).held == 0


def test_an_operator_ends_it_with_force_alone() -> None:
    """Work may run under it, and nobody would kill that."""
    core = soft_core()
    lease = hold(core)
    core.handle(Disconnect("c"), 0.0)
    core.handle(Tick(), 3.0)
    assert core.statistics(3.0).sessions == 3
    core.handle(Revoke(lease), 3.0)
    assert core.statistics(3.0).held == 1
    core.handle(Revoke(lease, force=True), 3.0)
    assert (core.statistics(3.0).held, core.statistics(3.0).sessions) == (0, 2)


def test_an_executor_that_can_bind_makes_it_an_ordinary_lease() -> None:
    core = soft_core()
    lease = hold(core)
    core.handle(Disconnect("c"), 0.0)
    core.handle(Tick(), 3.0)
    core.handle(Bind("x", lease, "c"), 3.0)
    assert core.statistics(3.0).sessions == 2, "nothing is left of its client"
    assert core.statistics(3.0).bound == 1
    core.handle(Tick(), 10.0)
    assert core.statistics(10.0).held == 1
    core.handle(Tick(), 10.2)
    assert core.statistics(10.2).held == 0, "its executor was silent"


def test_it_is_refused_where_it_is_not_offered() -> None:
    rejected = only(Rejected, make_core().handle(Acquire("c", "a", hold=1.0), 0.0))
    assert rejected.message == "hold_s is 1, but leases of code have to be bound: its max_hold_s is 0"
    rejected = only(Rejected, soft_core().handle(Acquire("c", "a", hold=61.0), 0.0))
    assert rejected.message == "hold_s is 61, must be at most 60, the max_hold_s of code"
    rejected = only(Rejected, soft_core().handle(Acquire("x", "a", hold=1.0), 0.0))
    assert rejected.message == "hold_s is 1, must be 0 on an executor's session, which binds"


def test_a_grant_that_its_client_no_longer_wants_is_given_back() -> None:
    core = soft_core()
    hold(core)
    core.handle(Cancel("c", "soft"), 0.0)
    assert core.statistics(0.0).held == 0


def test_a_restarted_limiter_counts_it_for_what_is_left() -> None:
    core = LimiterCore(9, [BucketLimits("code", 4, max_hold=10.0)], now=-3.0, follows=True)
    old = LeaseId(5, 1)
    held = (
        HeldLease(old, "code", "c", 3, hold=20.0),
        HeldLease(LeaseId(5, 2), "code", "c"),
        HeldLease(LeaseId(5, 3), "code", "z", hold=5.0),
    )
    welcomed = core.handle(Hello("c", SessionKind.CLIENT, held=held), 0.0)
    assert unknown(welcomed) == [LeaseId(5, 2), LeaseId(5, 3)]
    assert (core.statistics(0.0).held, core.statistics(0.0).bound) == (3, 0)
    assert granted(core.handle(Acquire("c", "two", tokens=2), 0.0)) == []
    assert only(Revoked, core.handle(Tick(), 10.0)).lease == old
    assert only(Granted, core.handle(Acquire("c", "x"), 10.0))


def _config(listen: str = ANYWHERE, *, fresh: bool = True, start_by_s: float = 0.2) -> LimiterConfig:
    bucket = BucketConfig(max_in_flight=4, max_hold_s=60.0, start_by_s=start_by_s, adaptive=True)
    return LimiterConfig(
        listen=listen,
        admin_listen=ANYWHERE,
        health_listen=ANYWHERE,
        buckets={"code": bucket},
        grace_s=0.1,
        fresh=fresh,
    )


async def test_over_the_network_it_lasts_until_the_block_is_left() -> None:
    async with LimiterServer(_config()) as server, LimiterClient(server.address) as client:
        async with client.lease(hold=30.0):
            await asyncio.sleep(0.5)
            assert server.statistics().held == 1
        await until(lambda: server.statistics().held == 0)
        with pytest.raises(LeaseRefused, match=r"hold_s is 61, must be at most 60"):
            await client.lease(hold=61.0).__aenter__()
        for bad in (-1.0, float("nan"), 1e9):
            with pytest.raises(FieldErrors, match="hold is"):
                client.lease(hold=bad)


async def test_a_unary_client_has_them_too() -> None:
    async with LimiterServer(_config()) as server, unary_stub(server) as stub:
        async with unary_lease(stub, pb.AcquireTokenRequest(hold_s=30.0, unbound_ttl_s=0.2)):
            await asyncio.sleep(0.5)
            assert server.statistics().held == 1
        assert server.statistics().held == 0
        for refused in (61.0, -1.0):
            code = await code_of(stub.AcquireToken(pb.AcquireTokenRequest(hold_s=refused)))
            assert code is grpc.StatusCode.INVALID_ARGUMENT
        await stub.AcquireToken(pb.AcquireTokenRequest(hold_s=0.3))
        await until(lambda: (server.statistics().held, server.statistics().sessions) == (0, 0))
        bucket = server.statistics().bucket()
        assert (bucket.granted_total, bucket.released_total, bucket.revoked_total) == (2, 1, 1), "time ended the second"


async def test_a_client_that_closes_in_the_middle_leaves_it_to_its_hold_time() -> None:
    async with LimiterServer(_config()) as server:
        asked = time.monotonic()
        async with LimiterClient(server.address) as client:
            await client.lease(hold=1.0).__aenter__()
        await until(lambda: server.statistics().held == 0, within=10)
        assert time.monotonic() - asked > 0.99, "neither its client nor the grace has ended it"
        await until(lambda: server.statistics().sessions == 0)


async def test_a_kept_lease_outlives_its_block_and_ends_with_its_hold_time() -> None:
    async with LimiterServer(_config()) as server, LimiterClient(server.address) as client:
        async with client.lease(hold=4.0) as kept, client.lease(hold=30.0) as other:
            client.keep(kept)
        assert client.held == (kept,)
        await until(lambda: server.statistics().bucket().released_total == 1)
        assert server.statistics().held == 1, "the other one was given back"
        await until(lambda: server.statistics().held == 0, within=30)
        await until(lambda: client.held == (), within=30)
        assert kept != other


async def test_the_outcome_of_a_release_lowers_an_adaptive_limit() -> None:
    async with LimiterServer(_config(start_by_s=30.0)) as server, LimiterClient(server.address) as client:
        async with client.lease(hold=5.0) as lease:
            client.release(lease, ReleaseOutcome.OVERLOADED)
            await until(lambda: server.statistics().bucket().effective_limit == 3)
        assert server.statistics().bucket().released_total == 1
        async with ExecutorSession(server.address) as executor, client.lease() as bound:
            assert (await executor.bind(bound)).bound
            client.release(bound)
            await asyncio.sleep(0.1)
            assert server.statistics().bound == 1
            executor.release(bound)


@asynccontextmanager
async def sandbox_answering(statuses: list[int]) -> AsyncIterator[str]:
    """A sandbox behind HTTP that answers with these in turn, and then with 200."""

    async def run(request: web.Request) -> web.Response:
        return web.Response(status=statuses.pop(0) if statuses else 200)

    app = web.Application()
    app.router.add_post("/run_code", run)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"{site._server.sockets[0].getsockname()[1]}"  # type: ignore[union-attr]
    finally:
        await runner.cleanup()


async def test_a_sandbox_that_answers_429_lowers_an_adaptive_limit_and_one_that_works_raises_it() -> None:
    """The tool says no word of its own: what leaves the block tells, also from behind an error of the tool."""
    statuses = [429, 500, 404, 503, 504, 429, 429, 429]
    async with (
        LimiterServer(_config()) as server,
        LimiterClient(server.address) as client,
        sandbox_answering(statuses) as port,
        aiohttp.ClientSession(raise_for_status=True) as session,
    ):
        url = f"http://127.0.0.1:{port}/run_code"
        limits = []
        for number in range(28):
            with suppress(RuntimeError):
                async with client.lease(hold=30.0):
                    try:
                        (await session.post(url)).release()
                    except aiohttp.ClientResponseError as error:
                        raise RuntimeError("the tool's own words") from error
            await until(lambda number=number: server.statistics().bucket().released_total == number + 1)  # type: ignore[misc]
            limits.append(server.statistics().bucket().effective_limit)
        assert limits[:8] == [3, 3, 3, 2, 2, 1, 1, 1]
        assert limits[-1] > 1
        outcomes = server.statistics().bucket().outcomes
        assert (outcomes[ReleaseOutcome.OVERLOADED], outcomes[ReleaseOutcome.TIMEOUT]) == (5, 1)
        assert (outcomes[ReleaseOutcome.ERROR], outcomes[ReleaseOutcome.OK]) == (2, 20)


@pytest.mark.parametrize("kind", ["thread", "process"])
async def test_how_functions_of_a_pool_end_is_heard_too(kind: str) -> None:
    """An HTTPError of urllib can't be sent to another process; its 429 is heard all the same."""
    statuses = [429, 503, 504, 500]
    async with (
        LimiterServer(_config(start_by_s=30.0)) as server,
        ExecutionPool(server.address, num_workers=1, kind=kind) as pool,
        sandbox_answering(list(statuses)) as port,
    ):
        for status in statuses:
            with pytest.raises((HTTPError, FunctionFailed), match=str(status)) as raised:
                await pool.run(urlopen, f"http://127.0.0.1:{port}/run_code", b"")
            if isinstance(raised.value, HTTPError):
                raised.value.close()
        with pytest.raises(RunTimeout):
            await pool.run(time.sleep, 1, timeout=0.2)
        assert await pool.run(abs, -1) == 1
        await until(lambda: server.statistics().held == 0)
        outcomes = server.statistics().bucket().outcomes
        assert (outcomes[ReleaseOutcome.OVERLOADED], outcomes[ReleaseOutcome.TIMEOUT]) == (2, 2)
        assert (outcomes[ReleaseOutcome.ERROR], outcomes[ReleaseOutcome.OK]) == (1, 1)


async def test_it_is_counted_again_after_a_restart() -> None:
    listen = f"127.0.0.1:{free_port()}"
    async with LimiterClient(listen) as client:
        async with LimiterServer(_config(listen)):
            context = client.lease(tokens=3, hold=30.0)
            await context.__aenter__()
        async with LimiterServer(_config(listen, fresh=False)) as server:
            await until(lambda: server.statistics().held == 3)
            await context.__aexit__(None, None, None)
            await until(lambda: server.statistics().held == 0)
