"""The code interpreter in verl 0.9.1's own tool registry and agent loop, against a real limiter and executor."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
import warnings
from pathlib import Path
from typing import Any, cast

import pytest

from fairbox.errors import ConfigError
from rollout.interop.shared import close_shared
from rollout.stack import LocalStack
from rollout.tools import InfraError
from rollout.tools.code import CodeInterpreter
from tests.pages import examples
from tests.rollout.services import limiter_status

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    pytest.importorskip("verl", reason="verl is not installed: make test-interop")
    from verl.experimental.agent_loop.tool_agent_loop import AgentData, ToolAgentLoop
    from verl.experimental.agent_loop.tool_parser import FunctionCall
    from verl.tools.schemas import (
        OpenAIFunctionParametersSchema,
        OpenAIFunctionPropertySchema,
        OpenAIFunctionSchema,
        OpenAIFunctionToolSchema,
    )
    from verl.tools.tool_registry import load_all_tools

    from rollout.interop.verl.tool import INFRA_FIELD, NOT_AVAILABLE

pytestmark = [pytest.mark.verl, pytest.mark.asyncio(loop_scope="module")]

TOOL = "rollout.interop.verl.tool.CodeInterpreterTool"
SEED_SCHEMA = OpenAIFunctionToolSchema(
    type="function",
    function=OpenAIFunctionSchema(
        name="code_interpreter",
        description="A tool for executing code.",
        parameters=OpenAIFunctionParametersSchema(
            type="object",
            properties={
                "code": OpenAIFunctionPropertySchema(
                    type="string",
                    description="The code to execute.",
                    enum=None,
                )
            },
            required=["code"],
        ),
        strict=False,
    ),
)
"""As the design page of verl's tool has it."""


def tools(folder: Path, **config: Any) -> list[Any]:
    """Tools that verl's registry makes from a tool file."""
    tool: dict[str, Any] = {"class_name": TOOL, "config": {"type": "native"} | config}
    path = folder / "tools.yaml"
    path.write_text(json.dumps({"tools": [tool]}))  # JSON is YAML
    return cast("list[Any]", load_all_tools(str(path), None))


class Loop:
    """verl's own `_call_tool`, with as much of a `ToolAgentLoop` as it looks at."""

    def __init__(self, tools: list[Any], longest: int = 10_000) -> None:
        self.loop = ToolAgentLoop.__new__(ToolAgentLoop)
        self.loop.tools = {tool.name: tool for tool in tools}
        self.loop.max_tool_response_length = longest
        self.loop.tool_response_truncate_side = "middle"

    async def call(self, arguments: Any, data: Any = None, name: str = "code_interpreter") -> tuple[str, Any, Any]:
        call = FunctionCall(name=name, arguments=arguments if isinstance(arguments, str) else json.dumps(arguments))
        response, reward, metrics = await self.loop._call_tool(call, {}, data or trajectory())
        return response.text, reward, metrics


def trajectory(request_id: str = "t") -> Any:
    return AgentData(
        messages=[],
        image_data=[],
        video_data=[],
        audio_data=None,
        mm_processor_kwargs=None,
        metrics={},
        request_id=request_id,
        tools_kwargs={},
    )


def services(stack: LocalStack) -> dict[str, Any]:
    return {"executor": stack.ports.executor, "limiter": stack.ports.limiter}


async def test_tools_registration(tmp_path: Path) -> None:
    (tool,) = tools(tmp_path, num_workers=4, rate_limit=4, default_timeout=5, enable_global_rate_limit=True)
    assert (tool.name, tool.tool_schema) == ("code_interpreter", SEED_SCHEMA)


async def test_the_tool_file_of_the_page_is_taken(tmp_path: Path, stack: LocalStack) -> None:
    addresses = {"127.0.0.1:50051": stack.ports.executor, "127.0.0.1:50052": stack.ports.limiter}
    page = next(block for block in examples("how-to/verl.md", "yaml", addresses) if block.startswith("tools:"))
    path = tmp_path / "tools.yaml"
    path.write_text(page)
    assert (await Loop(load_all_tools(str(path), None)).call({"code": "print(6 * 7)"}))[0] == "42"


async def test_verls_loop_calls_it(tmp_path: Path, stack: LocalStack) -> None:
    loop = Loop(tools(tmp_path, **services(stack)))
    text, reward, metrics = await loop.call({"code": "print(6 * 7)", "executes": "True", "timeout": 10**9})
    assert (text, reward, metrics["outcome"]) == ("42", None, "ok")
    text, _, metrics = await loop.call({"code": "1 / 0"})
    assert text.endswith("ZeroDivisionError: division by zero")
    assert metrics["outcome"] == "program_error"
    assert (await loop.call({"code": ""}))[0] == 'Error: the argument "code" is empty.'
    assert (await loop.call({"program": "1"}))[0] == 'Error: the argument "code" is missing.'
    assert (await loop.call("[1]"))[0].endswith('"arguments" must be a JSON object, but is a list.')
    assert (await loop.call("{code"))[0].startswith("Invalid JSON in arguments")  # verl's own answer


async def test_a_session_lasts_over_the_calls_of_a_trajectory(tmp_path: Path, stack: LocalStack) -> None:
    loop, data = Loop(tools(tmp_path, mode="session", **services(stack))), trajectory("session")
    await loop.call({"code": "x = 6"}, data)
    assert (await loop.call({"code": "x * 7"}, data))[0] == "42"


async def test_old_rollouts_lifecycle_works_too(tmp_path: Path, stack: LocalStack) -> None:
    (tool,) = tools(tmp_path, **services(stack))
    instance_id, created = await tool.create("request-1", ground_truth="42")
    assert (instance_id, created.is_empty()) == ("request-1", True)
    response, _, _ = await tool.execute(instance_id, {"code": "print(42)"})
    assert response.text == "42"
    assert await tool.calc_reward(instance_id) == 0.0
    await tool.release(instance_id)
    await tool.release(instance_id)


async def test_what_a_trajectory_holds_is_released_when_verl_has_dropped_it(
    tmp_path: Path, stack: LocalStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    released: list[str] = []
    original = CodeInterpreter.release

    async def release(self: CodeInterpreter, trajectory_id: str) -> None:
        released.append(trajectory_id)
        await original(self, trajectory_id)

    monkeypatch.setattr(CodeInterpreter, "release", release)
    loop = Loop(tools(tmp_path, **services(stack)))
    first, second = trajectory("first"), trajectory("second")
    for data in (first, second, first):
        await loop.call({"code": "print(1)"}, data)
    assert not {"first", "second"} & set(released), "they may call again"
    del first, data
    gc.collect()
    await loop.call({"code": "print(1)"}, second)
    assert "first" in released
    assert "second" not in released


async def test_many_trajectories_share_one_limit_and_leave_nothing(tmp_path: Path, stack: LocalStack) -> None:
    loops = [Loop(tools(tmp_path, num_workers=32, **services(stack))) for _ in range(4)]
    calls = [loop.call({"code": f"print({n})"}) for n, loop in enumerate(loops * 5)]
    assert [text for text, _, _ in await asyncio.gather(*calls)] == [str(n) for n in range(20)]
    async with asyncio.timeout(30):
        while (bucket := (await limiter_status(stack)).buckets[0]).held or bucket.queued:
            await asyncio.sleep(0.02)


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({"num_worker": 3}, "num_worker .* is not a setting; did you mean num_workers"),
        ({"default_timeout": -1}, r"default_timeout is -1"),
        ({"rate_limit": "many"}, "rate_limit is 'many'"),
    ],
)
async def test_bad_settings_fail_when_the_tool_is_made(tmp_path: Path, config: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=f"config of the code interpreter: .*{problem}"):
        tools(tmp_path, **config)


async def failing_release(self: CodeInterpreter, trajectory_id: str) -> None:
    raise InfraError("the executor is gone")


async def test_a_dead_executor_is_told_to_nobody_but_the_trainer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    try:
        async with LocalStack() as stack:
            loop, data = Loop(tools(tmp_path, **services(stack))), trajectory()
            assert (await loop.call({"code": "print(1)"}, data))[0] == "1"
            os.kill(stack.pid("executor_service"), signal.SIGKILL)
            text, reward, metrics = await loop.call({"code": "print(1)"}, data)
            monkeypatch.setattr(CodeInterpreter, "release", failing_release)
            assert (await loop.call({"code": ""}, data))[0].startswith("Error: the argument")
        assert (text, reward, metrics["outcome"]) == (NOT_AVAILABLE, None, "infra")
        assert "executor" in data.extra_fields[INFRA_FIELD]
    finally:
        await close_shared()
