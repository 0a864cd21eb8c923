"""Runs one trajectory: asks the state machine what to do, does it, and keeps tokens and records.

Invariants: the engine gets exactly the builder's ids; every call of a turn is answered, in order; a failure of engine
or tools ends the trajectory as FAILED with cause INFRA and raises nothing; the tools are released whatever happens.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from executor_service import Cause
from fairbox.clock import Clock, MonotonicClock
from rollout.engines.base import Engine, EngineUnavailable, FinishReason, GenerationRequest, SamplingParams
from rollout.loop.limits import Limits
from rollout.loop.results import PhaseTimes, ToolCallRecord, TrajectoryResult
from rollout.loop.state import CallTools, Finish, Generate, RequestState, TrajectoryMachine
from rollout.loop.task import Task
from rollout.tokens.chat import ChatTemplate
from rollout.tokens.tokenizer import Message
from rollout.tokens.trajectory import TokenBuilder
from rollout.tools.base import InfraError, ToolOutcome, ToolResponse
from rollout.tools.hermes import MalformedCall, ToolCall, parse_tool_calls
from rollout.tools.toolbox import Toolbox

__all__ = ["AgentLoop", "turn_seed"]

_LOG = logging.getLogger("fairbox.rollout")
_SEED_STEP = 0x9E3779B97F4A7C15
"""The golden ratio of 64 bits, as splitmix64 steps: neighbouring seeds give unrelated turns."""


@dataclass(frozen=True, slots=True)
class AgentLoop:
    """Everything that trajectories share. `sampling` has no seed and no stop ids; both are set per turn."""

    engine: Engine
    chat: ChatTemplate
    tools: Toolbox
    limits: Limits
    sampling: SamplingParams
    queue_timeout_s: float = 600.0
    """Longest wait in the engine's queue, per turn."""
    clock: Clock = field(default_factory=MonotonicClock)

    async def run(self, task: Task, *, index: int, seed: int | None, attempt: int = 1) -> TrajectoryResult:
        """One trajectory of a task."""
        run = _Run(self, task, index, seed, attempt)
        try:
            await run.play()
        finally:
            await asyncio.shield(run.release())
        return run.result()


class _Run:
    """One trajectory while it runs."""

    def __init__(self, loop: AgentLoop, task: Task, index: int, seed: int | None, attempt: int) -> None:
        self._loop = loop
        self._task = task
        self._index = index
        self._seed = seed
        self._attempt = attempt
        self._id = uuid.uuid4().hex
        self._builder = TokenBuilder(loop.chat.prompt_ids(task.messages, loop.tools.schemas))
        self._machine = TrajectoryMachine(
            loop.limits, prompt_tokens=len(self._builder), max_model_tokens=loop.engine.max_model_tokens
        )
        self._messages: list[Message] = list(task.messages)
        self._records: list[ToolCallRecord] = []
        self._calls: tuple[ToolCall | MalformedCall, ...] = ()
        self._ended = True
        """Whether the last turn ended with the end-of-turn token."""
        self._times = PhaseTimes()
        self._tool_rewards: dict[str, float] = {}
        self._error: str | None = None
        self._finish: Finish | None = None
        self._began = loop.clock.now()

    async def play(self) -> None:
        """From the first decision to the last."""
        try:
            await self._loop.tools.create(self._id, self._task.tools_kwargs)
            decision: Generate | CallTools | Finish = self._machine.start()
            while not isinstance(decision, Finish):
                if isinstance(decision, Generate):
                    decision = await self._generate(decision)
                else:
                    decision = await self._call_tools(decision)
            self._tool_rewards = await self._loop.tools.rewards(self._id)
        except (InfraError, EngineUnavailable) as error:
            self._error = str(error)
            decision = self._machine.failed()
        except Exception as error:  # the boundary of a trajectory: a defect of ours must not end the others
            _LOG.exception("trajectory %s of %s failed", self._id, self._task.where)
            self._error = f"{type(error).__name__}: {error}"
            decision = self._machine.failed()
        self._finish = decision

    async def release(self) -> None:
        """Releases the tools; a failure to do so is not the trajectory's."""
        try:
            await self._loop.tools.release(self._id)
        except Exception as error:  # the boundary of a trajectory, as above
            _LOG.warning("trajectory %s: a tool could not be released: %s", self._id, error)

    def result(self) -> TrajectoryResult:
        assert self._finish is not None
        failed = self._machine.state is RequestState.FAILED
        return TrajectoryResult(
            trajectory_id=self._id,
            uid=self._task.uid,
            index=self._index,
            trajectory=self._builder.build(),
            messages=tuple(self._messages),
            tool_calls=tuple(self._records),
            state=self._machine.state,
            stop_reason=self._finish.reason,
            cause=Cause.INFRA if failed else Cause.POLICY if self._machine.usage.turns else Cause.TASK,
            turns=self._machine.usage.turns,
            sampling=replace(self._loop.sampling, seed=self._seed, stop_token_ids=self._loop.chat.stop_token_ids),
            times=replace(self._times, total_s=self._loop.clock.now() - self._began),
            attempts=self._attempt,
            error=self._error,
            tool_rewards=self._tool_rewards,
        )

    async def _generate(self, decision: Generate) -> CallTools | Finish:
        loop = self._loop
        params = replace(
            loop.sampling,
            max_new_tokens=decision.max_new_tokens,
            stop_token_ids=loop.chat.stop_token_ids,
            seed=turn_seed(self._seed, self._machine.usage.turns),
        )
        request = GenerationRequest(
            request_id=uuid.uuid4().hex,
            trajectory_id=self._id,
            input_ids=self._builder.ids,
            params=params,
            queue_timeout_s=loop.queue_timeout_s,
            time_limit_s=decision.time_limit_s,
        )
        result = await loop.engine.generate(request)
        self._builder.add_sampled(result)
        self._times = replace(
            self._times,
            queue_s=self._times.queue_s + result.queue_s,
            engine_s=self._times.engine_s + result.run_s,
        )
        text = loop.chat.turn_text(result.ids)
        self._messages.append({"role": "assistant", "content": text})
        self._ended = result.finish is FinishReason.STOP
        self._calls = parse_tool_calls(text)
        return self._machine.generated(
            tokens=len(result.ids), finish=result.finish, calls=len(self._calls), charged_s=result.run_s
        )

    async def _call_tools(self, decision: CallTools) -> Generate | Finish:
        chat = self._loop.chat
        try:
            responses = await self._loop.tools.answer(
                self._id, self._calls, run=decision.run, time_limit_s=decision.time_limit_s
            )
        except InfraError:
            lost = [ToolResponse("", ToolOutcome.INFRA)] * len(self._calls)
            self._record(lost, [""] * len(lost))
            raise
        texts = [chat.defuse(response.text) for response in responses]
        self._record(responses, texts)
        between = chat.between_turns(texts, ended=self._ended)
        charged = max((response.run_s for response in responses), default=0.0)
        following = self._machine.answered(tokens=len(between), charged_s=charged)
        if isinstance(following, Generate):
            self._builder.add_tool(between)
            self._messages += [{"role": "tool", "content": text} for text in texts]
        return following

    def _record(self, responses: Sequence[ToolResponse], texts: Sequence[str]) -> None:
        for call, response, text in zip(self._calls, responses, texts, strict=True):
            name, arguments = (call.name, call.arguments) if isinstance(call, ToolCall) else ("", None)
            self._records.append(
                ToolCallRecord(
                    turn=self._machine.usage.turns,
                    name=name,
                    arguments=arguments,
                    raw=call.raw,
                    outcome=response.outcome,
                    text=text,
                    truncated=response.truncated,
                    total_bytes=response.total_bytes,
                    wait_s=response.wait_s,
                    run_s=response.run_s,
                )
            )
        self._times = replace(
            self._times,
            tool_wait_s=self._times.tool_wait_s + sum(response.wait_s for response in responses),
            tool_run_s=self._times.tool_run_s + sum(response.run_s for response in responses),
        )


def turn_seed(seed: int | None, turn: int) -> int | None:
    """The seed of a turn (from 0) of a trajectory; None stays None."""
    return None if seed is None else (seed + (turn + 1) * _SEED_STEP) % 2**63
