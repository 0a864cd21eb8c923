"""A harness of verifiers that plays the rollout in its own process and runs the model's tool calls in the executor.

Every turn of the model goes through verifiers' interception, which keeps the trace, its limits and its stops. Tool
calls go through the limiter to the executor, with no server of MCP between them. The runtime that verifiers gives a
rollout stays empty: nothing of the model's runs there.

Invariants: a failure of the service becomes a `SandboxError`, so that verifiers neither scores the rollout nor shows
the model anything of it; what a rollout holds is released when verifiers cleans it up, however it ended; every request
names its trace to a capture gateway, which then records its exact tokens.

It has no other tools, and does not continue a finished rollout with a user's turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from pydantic import Field, field_validator

from fairbox.errors import ConfigError, FairboxError
from rollout.interop.needs import needs
from rollout.interop.settings import InterpreterSettings, from_mapping
from rollout.interop.shared import SharedTools
from rollout.tools import MalformedCall, ToolCall, ToolOutcome
from rollout.tools.code import CodeInterpreter
from rollout.tools.formats.calls import checked_call, json_problem, read_json, skip_space

with needs("verifiers", "0.4.0", "pip install verifiers==0.4.0"):
    import verifiers.v1 as vf
    from openai import APIStatusError, AsyncOpenAI
    from verifiers.v1.dialects.chat import message_to_wire
    from verifiers.v1.harnesses.utils.compaction import is_context_overflow

OUTCOMES = "tool_outcomes"
"""Key of `trace.info` with the outcome of each tool call, in order."""
TRAJECTORY_HEADER = "x-fairbox-trajectory"
"""Header of the capture gateway (docs/how-to/capture.md). Other endpoints ignore it."""


class FairboxHarnessConfig(vf.HarnessConfig):  # type: ignore[misc]
    """`env.agent.harness`. `tool_timeout` is the longest wait for the answers of one turn, queues included."""

    id: str = "fairbox-verifiers"
    tool: dict[str, Any] = Field(default_factory=dict)
    """The code interpreter's settings, with the addresses `executor` and `limiter` beside them."""
    max_parallel_calls: int = Field(4, ge=1)
    """Tool calls of one turn that run at once."""
    model_timeout: float = Field(3600.0, gt=0)
    """Longest wait for one turn of the model, in seconds."""

    @field_validator("tool")
    @classmethod
    def _known(cls, tool: dict[str, Any]) -> dict[str, Any]:
        try:
            _settings(tool).validate()
        except ConfigError as error:
            raise ValueError(str(error)) from None
        return tool


class FairboxHarness(vf.Harness[FairboxHarnessConfig]):  # type: ignore[misc]
    """The code interpreter for the model, until a turn without a tool call, or until verifiers stops the rollout."""

    APPENDS_SYSTEM_PROMPT = True
    EXECUTES_CODE = False  # not in the runtime, which is what verifiers asks
    NEEDS_CONTAINER = False

    def __init__(self, config: FairboxHarnessConfig) -> None:
        super().__init__(config)
        self._tools = SharedTools(_settings(config.tool), max_parallel_calls=config.max_parallel_calls)

    async def launch(
        self,
        ctx: Any,
        trace: Any,
        runtime: Any,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: Any,
    ) -> Any:
        """Plays the rollout. Raises SandboxError for the service, and what the model's endpoint raised."""
        messages = self._messages(data)
        tools: Any = [CodeInterpreter.default_schema.openai()]
        # OpenAI's client counts its retries in a header by which the interception joins them to the first request, so
        # that no turn is sampled twice.
        async with AsyncOpenAI(
            base_url=endpoint,
            api_key=secret,
            timeout=self.config.model_timeout,
            default_headers={TRAJECTORY_HEADER: trace.id},
        ) as client:
            while True:
                try:
                    completion = await client.chat.completions.create(model=ctx.model, messages=messages, tools=tools)
                except APIStatusError as error:
                    if is_context_overflow(error):  # the model's budget is spent; what it said is scored
                        return _DONE
                    raise
                said = completion.choices[0].message
                messages.append(said.model_dump(exclude_none=True))
                if not said.tool_calls:
                    return _DONE
                messages += await self._answer(trace, said.tool_calls)

    async def cleanup(self, trace: Any, runtime: Any) -> None:
        """Releases what the rollout holds. Idempotent. Raises InfraError, which verifiers logs."""
        async with asyncio.timeout(self.config.tool_timeout):
            await self._tools.release(trace.id)

    @vf.metric  # type: ignore[untyped-decorator]
    async def tool_calls(self, trace: Any) -> float:
        """Tool calls that were answered, malformed ones included."""
        return float(len(trace.info.get(OUTCOMES, ())))

    @vf.metric  # type: ignore[untyped-decorator]
    async def failed_tool_calls(self, trace: Any) -> float:
        """Answered tool calls whose program failed, or that were invalid."""
        return float(sum(outcome != ToolOutcome.OK for outcome in trace.info.get(OUTCOMES, ())))

    def _messages(self, data: Any) -> list[Any]:
        system, prompt = self.resolve_prompt(data)
        messages: list[Any] = [] if system is None else [{"role": "system", "content": system}]
        if isinstance(prompt, str):
            return [*messages, {"role": "user", "content": prompt}]
        return messages + [message_to_wire(message) for message in prompt or ()]

    async def _answer(self, trace: Any, wired: Sequence[Any]) -> list[dict[str, Any]]:
        calls = [_call(each) for each in wired]
        try:
            async with asyncio.timeout(self.config.tool_timeout):
                responses = await self._tools.answer(trace.id, calls)
        except TimeoutError as error:
            raise vf.SandboxError(f"no answer to a tool call within {self.config.tool_timeout:g} s") from error
        except FairboxError as error:
            raise vf.SandboxError(str(error)) from error
        trace.info.setdefault(OUTCOMES, []).extend(str(each.outcome) for each in responses)
        return [
            {"role": "tool", "tool_call_id": each.id, "content": response.text}
            for each, response in zip(wired, responses, strict=True)
        ]


_DONE = vf.ProgramResult(exit_code=0, stdout="", stderr="")
"""Result that verifiers takes from a harness that ran no program."""


def _settings(tool: dict[str, Any]) -> InterpreterSettings:
    return from_mapping(InterpreterSettings, tool, "harness fairbox-verifiers: tool")


def _call(wired: Any) -> ToolCall | MalformedCall:
    """The call as fairbox has it; one that is not in order keeps what is wrong with it."""
    if wired.type != "function":
        return MalformedCall(f"it must be a call of a function, but is of type {wired.type}", "")
    name, text = wired.function.name, wired.function.arguments or "{}"
    arguments, end, error = read_json(text, 0)
    if error is not None:
        return MalformedCall(json_problem(error, text, 0, len(text), cut_off=True), text, name)
    if skip_space(text, end) < len(text):
        return MalformedCall("there is something behind the JSON of its arguments", text, name)
    return checked_call({"name": name, "arguments": arguments, "id": wired.id}, text)
