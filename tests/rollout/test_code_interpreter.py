"""The code interpreter against a real limiter and a real executor."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
import pytest_asyncio

from fairbox.errors import ConfigError
from rollout.stack import LocalStack
from rollout.tools import InfraError, ToolOutcome, ToolResponse
from rollout.tools.code import CodeInterpreter, CodeInterpreterConfig
from rollout.tools.code.runner import CodeRunner
from tests.limiter.servers import limiter_server
from tests.rollout.services import executor_status, interpreter, limiter_status

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack() -> AsyncIterator[LocalStack]:
    async with LocalStack(
        limiter_args=["buckets.code.max_in_flight=3"],
    ) as stack:
        yield stack


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def tool(stack: LocalStack) -> AsyncIterator[CodeInterpreter]:
    async with interpreter(stack) as tool:
        yield tool


async def run(tool: CodeInterpreter, code: str, **arguments: Any) -> ToolResponse:
    return await tool.execute("trajectory", {"code": code, **arguments})


async def test_model_sees_what_its_program_printed(tool: CodeInterpreter) -> None:
    response = await run(tool, "print(6 * 7)")
    assert (response.text, response.outcome, response.truncated, response.total_bytes) == (
        "42",
        ToolOutcome.OK,
        False,
        3,
    )
    assert response.run_s > 0


async def test_model_sees_the_end_of_the_traceback(tool: CodeInterpreter) -> None:
    response = await run(tool, "print('before')\n1 / 0")
    assert response.outcome is ToolOutcome.PROGRAM_ERROR
    assert response.text.startswith("before\n")
    assert response.text.endswith("ZeroDivisionError: division by zero")


async def test_long_output_is_cut_with_its_full_size(tool: CodeInterpreter) -> None:
    response = await run(tool, "print('a' * 50_000, 'end')")
    assert (response.truncated, response.total_bytes) == (True, 50_005)
    assert "[... cut: 50005 bytes in all ...]" in response.text
    assert response.text.endswith("end")
    assert len(response.text) < 1100


async def test_model_chooses_neither_timeout_nor_language(stack: LocalStack) -> None:
    async with interpreter(stack, default_timeout=1.0) as tool:
        response = await run(tool, "import time; print(1, flush=True); time.sleep(60)", timeout=10**9, language="bash")
    assert response.outcome is ToolOutcome.TIME_LIMIT
    assert response.text.startswith("1\n[")
    assert response.run_s < 20


async def test_trajectorys_remaining_time_bounds_its_programs(tool: CodeInterpreter) -> None:
    response = await tool.execute("t", {"code": "import time; time.sleep(60)"}, time_limit_s=0.5)
    assert response.outcome is ToolOutcome.TIME_LIMIT


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("", 'Error: the argument "code" is empty.'),
        (" \n", 'Error: the argument "code" is empty.'),
        ("print('\ud800')", 'Error: the argument "code" holds half a surrogate pair at position 7'),
        ("x" * (1 << 20) + "y", "Error: the code "),
    ],
)
async def test_code_that_is_no_program_is_the_models_fault(tool: CodeInterpreter, code: str, text: str) -> None:
    response = await run(tool, code)
    assert response.outcome is ToolOutcome.BAD_ARGUMENTS
    assert response.text.startswith(text)


async def test_programs_run_under_the_cluster_wide_limit_and_give_it_back(
    stack: LocalStack, tool: CodeInterpreter
) -> None:
    before = (await limiter_status(stack)).buckets[0].granted_total
    calls = [asyncio.ensure_future(run(tool, "import time; time.sleep(0.5); print(1)")) for _ in range(8)]
    most = 0
    while not all(call.done() for call in calls):
        most = max(most, (await executor_status(stack)).running)
        await asyncio.sleep(0.02)
    assert [call.result().text for call in calls] == ["1"] * 8
    assert 1 <= most <= 3
    assert max(call.result().wait_s for call in calls) > 0.5  # the last ones waited for leases
    async with asyncio.timeout(10):
        while True:
            bucket = (await limiter_status(stack)).buckets[0]
            if bucket.held == bucket.queued == 0:
                break
            await asyncio.sleep(0.02)
    assert bucket.granted_total == before + 8


async def test_cancelled_call_frees_its_lease_and_kills_its_program(stack: LocalStack, tool: CodeInterpreter) -> None:
    call = asyncio.ensure_future(run(tool, "import time; time.sleep(60)"))
    while (await executor_status(stack)).running == 0:
        await asyncio.sleep(0.02)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    async with asyncio.timeout(10):
        while (await executor_status(stack)).running or (await limiter_status(stack)).buckets[0].held:
            await asyncio.sleep(0.02)


async def test_without_the_global_limit_this_process_keeps_to_the_rate(stack: LocalStack) -> None:
    async with interpreter(stack, enable_global_rate_limit=False, rate_limit=1) as tool:
        first, second = await asyncio.gather(*(run(tool, "import time; time.sleep(0.3); print(1)") for _ in range(2)))
    assert first.text == second.text == "1"
    assert max(first.wait_s, second.wait_s) >= 0.3


async def test_executor_that_dies_is_never_text_for_the_model() -> None:
    async with AsyncExitStack() as resources:
        stack = await resources.enter_async_context(LocalStack())
        tool = await resources.enter_async_context(interpreter(stack))
        running = asyncio.ensure_future(run(tool, "import time; time.sleep(60)"))
        while (await executor_status(stack)).running == 0:
            await asyncio.sleep(0.02)
        os.kill(stack.pid("executor_service"), signal.SIGKILL)
        with pytest.raises(InfraError):
            await asyncio.wait_for(running, 60)
        with pytest.raises(InfraError, match="executor on"):
            await asyncio.wait_for(run(tool, "print(1)"), 60)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"rate_limit": 0}, "tool.rate_limit is 0"),
        ({"default_timeout": float("nan")}, "tool.default_timeout is nan"),
        ({"queue_timeout": 86_401.0}, "tool.queue_timeout is 86401.0, must be above 0 and at most 86400"),
        ({"mode": "cell"}, "tool.mode is 'cell', must be one of: program, session"),
        ({"mode": "session", "default_language": "bash"}, "tool.default_language is 'bash', must be python where mode"),
        ({"memory_limit_mb": 0}, "tool.memory_limit_mb is 0, must be at least 1"),
    ],
)
async def test_settings_are_checked(settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        CodeInterpreter(CodeInterpreterConfig(**settings), executor="127.0.0.1:1", limiter="127.0.0.1:1")


async def test_a_full_executor_lowers_the_limit_that_its_callers_share() -> None:
    """Each call that it refuses, and the tool tries again, gives its lease back as OVERLOADED."""
    limiter_args = ["buckets.code.max_in_flight=8", "buckets.code.adaptive=true"]
    full = ["max_concurrent=1", "max_queued=0"]
    async with LocalStack(limiter_args=limiter_args, executor_args=full) as stack, interpreter(stack) as tool:
        calls = [run(tool, "import time; time.sleep(1)") for _ in range(8)]
        ended = await asyncio.gather(*calls, return_exceptions=True)
        assert any(isinstance(each, InfraError) for each in ended)
        assert (await limiter_status(stack)).buckets[0].effective_limit < 8


async def test_calls_whose_leases_no_executor_can_bind_ask_for_new_ones_slowly(stack: LocalStack) -> None:
    config = CodeInterpreterConfig(num_workers=1)
    async with (
        limiter_server(8) as other,
        CodeInterpreter(config, executor=stack.ports.executor, limiter=other.address) as tool,
    ):
        began = time.monotonic()
        calls = [asyncio.create_task(run(tool, "print(1)")) for _ in range(3)]
        for call in calls:
            with pytest.raises(InfraError, match="lease"):
                await call
        assert time.monotonic() - began > 0.5 * (0.1 + 0.2 + 0.4 + 0.8), "pauses, at their shortest"
        assert isinstance(tool._opened, CodeRunner)
        assert tool._opened.client.cooldown.failures == 6  # of three calls, each in two attempts
