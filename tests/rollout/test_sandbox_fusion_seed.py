"""The test plan of verl's sandbox fusion tool: request creation, over-long rollouts, one tool call, a batch of them.

The engine follows a script, as the plan says; tool, executor and limiter are real. The other names of the plan are
`test_tools_registration` (tests/interop/test_verl_tool.py, and here for fairbox's own registry of tools) and the
limiter's, in tests/limiter/ray/test_ray.py.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import cast

import pytest
import pytest_asyncio

from executor_service import Cause
from rollout.engines import SamplingParams
from rollout.loop import (
    AgentLoop,
    Generate,
    Limits,
    RequestState,
    StopReason,
    Task,
    TrajectoryMachine,
    TrajectoryResult,
)
from rollout.rewards import gsm8k_reward
from rollout.stack import LocalStack
from rollout.testing import ScriptedEngine
from rollout.tokens import ChatTemplate, HubTokenizer, SegmentKind
from rollout.tools import Toolbox
from rollout.tools.code import CodeInterpreter, CodeInterpreterConfig
from tests.rollout.scripted import roll_out
from tests.rollout.services import limiter_status

pytestmark = pytest.mark.asyncio(loop_scope="module")

TASK = Task("u", ({"role": "user", "content": "What is 1 + 2, and then 100 + 49?"},), "149", "seed", "here:1")
CALL = '<tool_call>\n{{"name": "code_interpreter", "arguments": {{"code": "{}"}}}}\n</tool_call>'
TURNS = (f"First.\n{CALL.format('print(1 + 2)')}", CALL.format("print(100 + 49)"), "#### 149")
SCHEMA = {
    "type": "function",
    "function": {
        "name": "code_interpreter",
        "description": "A tool for executing code.",
        "parameters": {
            "type": "object",
            "properties": {"code": {"type": "string", "description": "The code to execute."}},
            "required": ["code"],
        },
        "strict": False,
    },
}
"""The plan's own, without the `enum` that is None there."""

MakeLoop = Callable[..., tuple[AgentLoop, ScriptedEngine]]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack() -> AsyncIterator[LocalStack]:
    async with LocalStack(
        limiter_args=["buckets.code.max_in_flight=4"],
    ) as stack:
        yield stack


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def tool(stack: LocalStack) -> AsyncIterator[CodeInterpreter]:
    config = CodeInterpreterConfig(num_workers=8, rate_limit=4)
    async with CodeInterpreter(config, executor=stack.ports.executor, limiter=stack.ports.limiter) as tool:
        yield tool


@pytest.fixture
def make_loop(tool: CodeInterpreter, tokenizer: HubTokenizer, chat: ChatTemplate) -> MakeLoop:
    def make(turns: Sequence[str], limits: Limits | None = None) -> tuple[AgentLoop, ScriptedEngine]:
        engine = ScriptedEngine(tokenizer, turns, vocab_size=49152)
        return AgentLoop(engine, chat, Toolbox([tool]), limits or Limits(), SamplingParams()), engine

    return make


async def test_tools_registration(tool: CodeInterpreter) -> None:
    toolbox = Toolbox([tool])
    assert toolbox.schemas == [SCHEMA]
    config = CodeInterpreterConfig()
    assert (config.rate_limit, config.default_timeout, config.default_language) == (10, 30.0, "python")
    assert (config.enable_global_rate_limit, config.sandbox_fusion_url) == (True, None)


async def test_rollout_req_creation(chat: ChatTemplate, tokenizer: HubTokenizer, tool: CodeInterpreter) -> None:
    prompt = chat.prompt_ids(TASK.messages, Toolbox([tool]).schemas)
    request = TrajectoryMachine(Limits(), prompt_tokens=len(prompt), max_model_tokens=8192)
    assert request.state is RequestState.PENDING
    assert (request.usage.prompt_tokens, request.usage.response_tokens, request.usage.turns) == (len(prompt), 0, 0)
    text = tokenizer.decode(prompt)
    assert '"name": "code_interpreter"' in text
    assert text.endswith("<|im_start|>assistant\n")
    first = request.start()
    assert isinstance(first, Generate)
    assert first.max_new_tokens == Limits().max_turn_tokens
    assert cast("RequestState", request.state) is RequestState.RUNNING


async def test_over_size_case(make_loop: MakeLoop, tokenizer: HubTokenizer) -> None:
    room = len(tokenizer.encode(TURNS[0])) - 3
    loop, engine = make_loop(TURNS, Limits(max_response_tokens=room, max_turn_tokens=None))
    result = await loop.run(TASK, index=0, seed=1)
    assert (result.state, result.stop_reason) == (RequestState.COMPLETED, StopReason.RESPONSE_LENGTH)
    assert [message["role"] for message in result.messages] == ["user", "assistant"]
    assert result.messages[1]["content"] == tokenizer.decode(result.trajectory.response_ids)
    assert len(result.trajectory.response_ids) == room
    assert (result.tool_calls, result.tool_rewards, len(engine.requests)) == ((), {}, 1)
    assert (result.cause, result.masked) == (Cause.POLICY, False)


def check_basic_case(result: TrajectoryResult) -> None:
    assert (result.state, result.stop_reason) == (RequestState.COMPLETED, StopReason.ANSWERED)
    roles = [message["role"] for message in result.messages]
    assert roles == ["user", "assistant", "tool", "assistant", "tool", "assistant"]
    assert [call.text for call in result.tool_calls] == ["3", "149"]
    assert [message["content"] for message in result.messages if message["role"] == "tool"] == ["3", "149"]
    assert [message["content"] for message in result.messages if message["role"] == "assistant"] == list(TURNS)
    kinds = [segment.kind for segment in result.trajectory.segments]
    assert kinds == [SegmentKind.PROMPT, *[SegmentKind.SAMPLED, SegmentKind.TOOL] * 2, SegmentKind.SAMPLED]


async def test_tool_call_basic_case(make_loop: MakeLoop) -> None:
    loop, engine = make_loop(TURNS)
    result = await loop.run(TASK, index=0, seed=1)
    check_basic_case(result)
    assert len(engine.requests) == 3
    for before, after in zip(engine.requests, engine.requests[1:], strict=False):
        assert after.input_ids[: len(before.input_ids)] == before.input_ids
    assert result.trajectory.ids[: len(engine.requests[2].input_ids)] == engine.requests[2].input_ids


async def test_tool_call_batch_case(make_loop: MakeLoop, stack: LocalStack) -> None:
    loop, engine = make_loop(TURNS)
    done = await roll_out(
        loop,
        lambda task, result: gsm8k_reward(result.final_text, task.ground_truth),
        [TASK],
        concurrency=100,
        samples_per_prompt=100,
    )
    results = [result for _, result in done]
    assert len(results) == 100
    for result in results:
        check_basic_case(result)
    assert {result.reward.value for result in results if result.reward is not None} == {1.0}
    assert (len(engine.requests), len({result.trajectory_id for result in results})) == (300, 100)
    assert (await limiter_status(stack)).buckets[0].granted_total >= 200
