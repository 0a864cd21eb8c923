"""A server with more work than it can do: it says so, says when to come back, and goes on answering."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator

import pytest

from executor_service import ExecutorClient, Limits, Outcome, Overloaded
from tests.executor.servers import Server, running, wait_for

SPIN = "while True: pass"
LONG = Limits(wall_time_s=600)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """A server that runs one program at a time, while four others may wait."""
    with running("max_concurrent=1", "max_queued=4", "tenant_weights={calm: 0.5}") as started:
        yield started


async def fill(executor: ExecutorClient, server: Server, running_: int, queued: int) -> list[asyncio.Task[object]]:
    """Programs that take all the processor they get, until every slot and every place in the queue is taken."""
    calls = [asyncio.create_task(executor.execute(SPIN, limits=LONG)) for _ in range(running_ + queued)]
    await asyncio.to_thread(
        wait_for, lambda: (status := server.status()).running == running_ and status.queued == queued, 60.0
    )
    return calls  # type: ignore[return-value]


async def end(calls: list[asyncio.Task[object]], server: Server) -> None:
    for call in calls:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)
    await asyncio.to_thread(wait_for, lambda: server.status().running == server.status().queued == 0)


async def test_status_and_health_answer_while_the_queue_is_full() -> None:
    """Twice as many programs as processors, each a busy loop, and a full queue behind them."""
    with running("max_concurrent=4", "max_queued=6") as server:
        async with ExecutorClient(server.target) as executor:
            calls = await fill(executor, server, 4, 6)
            for _ in range(20):
                with pytest.raises(Overloaded, match="max_queued") as caught:
                    await executor.execute("1")
                assert 0 < caught.value.retry_after_s <= 30
                status = await asyncio.to_thread(server.status)  # has a deadline of its own
                assert (status.running, status.queued, status.max_queued) == (4, 6, 6)
                assert await asyncio.to_thread(server.readiness) == 1
            await end(calls, server)
            assert (await executor.execute("print(1)")).outcome is Outcome.FINISHED


async def test_overload_reaches_every_kind_of_call(executor: ExecutorClient, server: Server) -> None:
    calls = await fill(executor, server, 1, 4)
    with pytest.raises(Overloaded):
        await anext(executor.stream("1"))
    [item] = await executor.execute_all(["1"])
    assert isinstance(item, Overloaded)
    await end(calls, server)


async def test_a_waiting_request_is_gone_when_its_call_is_cancelled(executor: ExecutorClient, server: Server) -> None:
    calls = await fill(executor, server, 1, 0)
    waiting = asyncio.create_task(executor.execute("print(1)", request_id="waiting"))
    await asyncio.to_thread(wait_for, lambda: server.status().queued == 1)
    assert server.status().oldest_wait_s > 0
    waiting.cancel()
    await asyncio.to_thread(wait_for, lambda: server.status().queued == 0)
    await end(calls, server)
    # It never started, so its id is free.
    assert not (await executor.execute("print(1)", request_id="waiting")).deduplicated


async def test_a_tenant_gets_its_share_of_a_queue_that_another_has_filled(
    executor: ExecutorClient, server: Server
) -> None:
    (runs,) = await fill(executor, server, 1, 0)
    calls = [asyncio.create_task(executor.execute(SPIN, limits=LONG)) for _ in range(4)]
    await asyncio.to_thread(wait_for, lambda: server.status().queued == 4)
    calm = asyncio.create_task(executor.execute("print(1)", tenant="calm"))
    with pytest.raises(Overloaded, match=r"max_queued\), 4 of them this tenant's, whose share is 2: .*gave way"):
        await asyncio.wait_for(next(asyncio.as_completed(calls)), 30)
    with pytest.raises(Overloaded, match=r"max_queued\), 1 of them this tenant's, whose share is 1$") as caught:
        await executor.execute("1", tenant="calm")
    assert 0 < caught.value.retry_after_s <= 30
    with pytest.raises(Overloaded, match=r"max_queued\), 3 of them this tenant's, whose share is 2$"):
        await executor.execute("1")
    assert (server.status().running, server.status().queued) == (1, 4)
    runs.cancel()
    assert (await asyncio.wait_for(calm, 30)).ok, "its turn comes, although three of the other's came before it"
    await end(calls, server)  # type: ignore[arg-type]


async def test_what_was_refused_left_nothing_behind(executor: ExecutorClient, server: Server) -> None:
    """A refused request is in no count and its id is free."""
    calls = await fill(executor, server, 1, 4)
    for _ in range(50):
        with pytest.raises(Overloaded):
            await executor.execute("print('later')", request_id="later")
    assert (server.status().running, server.status().queued) == (1, 4)
    await end(calls, server)
    result = await executor.execute("print('later')", request_id="later")
    assert (result.stdout.data, result.deduplicated) == (b"later\n", False)


async def test_programs_get_the_processor_after_the_server(executor: ExecutorClient, server: Server) -> None:
    """Every program is nicer than the server, and can't change that."""
    ours = os.getpriority(os.PRIO_PROCESS, server.pid)
    code = "import os\nprint(os.getpriority(os.PRIO_PROCESS, 0))\ntry: os.nice(-1)\nexcept OSError: print('no')"
    assert (await executor.execute(code)).stdout.text == f"{ours + 5}\nno\n"
    code = "ps -o ni= -p $$ 2>/dev/null || cut -d' ' -f19 /proc/$$/stat"
    assert (await executor.execute(code, language="bash")).stdout.text.split() == [str(ours + 5)]
