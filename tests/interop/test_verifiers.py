"""Rollouts of verifiers 0.4.0 with the code interpreter, against a real limiter and executor.

The model is a scripted engine behind the capture gateway, which verifiers takes for an OpenAI-compatible endpoint.
"""

from __future__ import annotations

import contextlib
import os
import signal
import tomllib
import warnings
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from pydantic import ValidationError

from fairbox.errors import ConfigError
from rollout.capture import CaptureGateway, CaptureSettings
from rollout.interop.shared import close_shared
from rollout.rewards import Sample
from rollout.stack import LocalStack
from rollout.testing import ScriptedEngine
from rollout.tokens import ChatTemplate, HubTokenizer
from rollout.tools.code import CodeInterpreter
from tests.pages import examples
from tests.rollout.services import limiter_status

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    pytest.importorskip("verifiers", reason="verifiers is not installed: make test-interop")
    import verifiers.v1 as vf
    from verifiers.v1.configs.cli.eval import EvalConfig
    from verifiers.v1.utils.compile import validate_pairing

    from fairbox_verifiers import FairboxHarness
    from rollout.interop.verifiers.harness import FairboxHarnessConfig
    from rollout.interop.verifiers.taskset import FairboxData, FairboxTask, FairboxTaskConfig

pytestmark = [pytest.mark.verifiers, pytest.mark.asyncio(loop_scope="module")]

ID = "fairbox-verifiers"


def call(code: str) -> str:
    return f'<tool_call>\n{{"name": "code_interpreter", "arguments": {{"code": "{code}"}}}}\n</tool_call>'


def problems(**config: Any) -> list[Any]:
    """The built-in problems, through verifiers' own loader."""
    return list(vf.load_taskset(vf.taskset_config_type(ID).model_validate({"id": ID, **config})))


class Player:
    """verifiers' own agent, over what the model says."""

    def __init__(self, stack: LocalStack, gateway: CaptureGateway, engine: ScriptedEngine) -> None:
        self.stack, self.gateway, self.engine = stack, gateway, engine

    async def play(self, task: Any, *, tool: dict[str, Any] | None = None, **config: Any) -> Any:
        services = {"executor": self.stack.ports.executor, "limiter": self.stack.ports.limiter}
        url = self.gateway.base_url("x").replace("/t/x", "")
        agent = vf.AgentConfig.model_validate(
            {
                "harness": {"id": ID, "tool": services | (tool or {})},
                "runtime": {"type": "subprocess"},
                "model": self.engine.model_name,
                "client": {"type": "eval", "base_url": url, "api_key_var": "FAIRBOX_NO_KEY"},
                **config,
            }
        )
        async with vf.Agent(agent) as player:
            return await player.run(task)


@contextlib.asynccontextmanager
async def saying(
    stack: LocalStack, tokenizer: HubTokenizer, chat: ChatTemplate, turns: Sequence[str | Exception]
) -> AsyncIterator[Player]:
    engine = ScriptedEngine(tokenizer, turns, vocab_size=49152)
    async with engine, CaptureGateway(engine, chat, CaptureSettings(listen="127.0.0.1:0")) as gateway:
        yield Player(stack, gateway, engine)


async def test_verifiers_finds_both_under_one_id() -> None:
    assert vf.default_harness_id(ID) == ID
    assert vf.harness_config_type(ID) is FairboxHarnessConfig
    first = problems()[0]
    assert (first.data.idx, first.data.ground_truth, first.key) == (0, "126", first.data.id)


async def test_a_rollout_calls_the_tool_and_is_scored_with_exact_tokens(
    stack: LocalStack, tokenizer: HubTokenizer, chat: ChatTemplate
) -> None:
    async with saying(stack, tokenizer, chat, [call("print(14 * 9)"), "#### 126"]) as player:
        trace = await player.play(problems()[0])
        captured = player.gateway.trajectory(trace.id).branch.trajectory
    assert (trace.ok, trace.errors, trace.reward) == (True, [], 1.0)
    assert [message.content for message in trace.tool_messages] == ["126"]
    assert trace.metrics == {"tool_calls": 1.0, "failed_tool_calls": 0.0}
    second = player.engine.requests[1].input_ids
    assert (*captured.prompt_ids, *captured.response_ids)[: len(second)] == second
    assert 0 < sum(captured.response_mask) < len(captured.response_mask)
    bucket = (await limiter_status(stack)).buckets[0]
    assert (bucket.held, bucket.queued) == (0, 0)


async def test_what_the_model_did_wrong_is_told_to_it(
    stack: LocalStack, tokenizer: HubTokenizer, chat: ChatTemplate
) -> None:
    broken = '<tool_call>\n{"name": "code_interpreter", "arguments": {"code": 1}, }\n</tool_call>'
    async with saying(stack, tokenizer, chat, [broken, call("1 / 0"), "#### 1"]) as player:
        trace = await player.play(problems()[0])
    malformed, failed = (message.content for message in trace.tool_messages)
    assert malformed.startswith("Error: the tool call is malformed")
    assert failed.endswith("ZeroDivisionError: division by zero")
    assert (trace.ok, trace.reward) == (True, 0.0)
    assert trace.metrics == {"tool_calls": 2.0, "failed_tool_calls": 2.0}


async def test_a_session_lives_as_long_as_its_rollout(
    stack: LocalStack, tokenizer: HubTokenizer, chat: ChatTemplate, monkeypatch: pytest.MonkeyPatch
) -> None:
    released: list[str] = []
    original = CodeInterpreter.release

    async def release(self: CodeInterpreter, trajectory_id: str) -> None:
        released.append(trajectory_id)
        await original(self, trajectory_id)

    monkeypatch.setattr(CodeInterpreter, "release", release)
    async with saying(stack, tokenizer, chat, [call("x = 125"), call("x + 1"), "#### 126"]) as player:
        trace = await player.play(problems()[0], tool={"mode": "session"})
    assert ([message.content for message in trace.tool_messages][1], trace.reward) == ("126", 1.0)
    assert released == [trace.id]


async def test_verifiers_limits_hold(stack: LocalStack, tokenizer: HubTokenizer, chat: ChatTemplate) -> None:
    async with saying(stack, tokenizer, chat, [call("print(1)"), "#### 126"]) as player:
        trace = await player.play(problems()[0], max_turns=1)
    assert (trace.ok, trace.num_turns, trace.reward) == (True, 1, 0.0)
    assert trace.stop_condition is not None


async def test_a_dead_executor_ends_the_rollout_unscored(tokenizer: HubTokenizer, chat: ChatTemplate) -> None:
    try:
        async with LocalStack() as stack, saying(stack, tokenizer, chat, [call("print(1)"), "#### 126"]) as player:
            os.kill(stack.pid("executor_service"), signal.SIGKILL)
            trace = await player.play(problems()[0])
        assert (trace.ok, trace.last_error.type, trace.stop_condition) == (False, "SandboxError", "sandbox_error")
        assert "executor" in trace.last_error.message
        assert (trace.rewards, trace.tool_messages, len(player.engine.requests)) == ({}, [], 1)
    finally:
        await close_shared()


async def test_a_task_of_ones_own(stack: LocalStack, tokenizer: HubTokenizer, chat: ChatTemplate) -> None:
    data = FairboxData(prompt="Say something.", ground_truth="yes")
    task = FairboxTask(data, FairboxTaskConfig(reward=f"{__name__}:says"))
    async with saying(stack, tokenizer, chat, ["yes"]) as player:
        assert (await player.play(task)).reward == 0.5
    endless = FairboxTask(data, FairboxTaskConfig(reward=f"{__name__}:endless"))
    async with saying(stack, tokenizer, chat, ["yes"]) as player:
        trace = await player.play(endless)
    assert (trace.ok, trace.last_error.type) == (False, "TaskError")
    assert "must be a finite number" in trace.last_error.message


async def test_the_python_of_the_page_runs(stack: LocalStack, tokenizer: HubTokenizer, chat: ChatTemplate) -> None:
    async with saying(stack, tokenizer, chat, [call("print(14 * 9)"), "#### 126"]) as player:
        places = {
            "127.0.0.1:8081": player.gateway.address,
            "127.0.0.1:50051": stack.ports.executor,
            "127.0.0.1:50052": stack.ports.limiter,
            "SmolLM2-135M-Instruct": player.engine.model_name,
        }
        program: dict[str, Any] = {"__name__": "page"}
        exec(examples("how-to/verifiers.md", "python", places)[0], program)
        traces = await program["main"]()
    assert [trace.ok for trace in traces] == [True] * 4
    assert [trace.reward for trace in traces] == [1.0, 0.0, 0.0, 0.0]
    assert {trace.metrics["tool_calls"] for trace in traces} == {1.0}


async def test_the_evaluation_of_the_page_is_taken() -> None:
    config = EvalConfig.model_validate(tomllib.loads(examples("how-to/verifiers.md", "toml")[0]))
    agent = config.env.agent
    assert (type(agent.harness), agent.runtime.type) == (FairboxHarnessConfig, "subprocess")
    assert agent.harness.tool["executor"] == "127.0.0.1:50051"


def says(sample: Sample) -> float:
    return 0.5 * (sample.text == sample.ground_truth)


def endless(sample: Sample) -> float:
    return float("nan")


async def test_bad_settings_fail_before_anything_runs() -> None:
    with pytest.raises(ValidationError, match=r"num_worker .* is not a setting; did you mean num_workers"):
        FairboxHarnessConfig(tool={"num_worker": 3})
    with pytest.raises(ValidationError, match=r"tool: default_timeout is -1"):
        FairboxHarnessConfig(tool={"default_timeout": -1})
    with pytest.raises(ConfigError, match="reward is 'right': reward 'right' is not registered"):
        problems(task={"reward": "right"})
    harness = FairboxHarness(FairboxHarnessConfig())
    with pytest.raises(ValueError, match="does not support MCP"):
        validate_pairing(harness, FairboxTask, vf.SubprocessConfig(), tools=["any"])
