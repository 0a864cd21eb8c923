"""One trajectory while it runs: asks the state machine what to do, does it, and keeps tokens and records.

Invariants: the engine gets exactly the builder's ids; every call of a turn is answered, in order; a part that is closed
never changes; a failure of engine or tools ends the trajectory as FAILED with cause INFRA and raises nothing; the tools
are released whatever happens.
A trajectory is forked between two turns, when everything that it is made of can be copied: its tokens, its messages,
its usage and, by the tools themselves, their state.
"""

from __future__ import annotations

import asyncio
import copy
import logging
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import TYPE_CHECKING, Self

from executor_service import Cause
from fairbox.errors import FieldError, FieldErrors
from fairbox.telemetry import tracing
from rollout.cleanup import cancelled_here, to_its_end
from rollout.engines.base import EngineUnavailable, GenerationRequest, derived_seed
from rollout.loop.condense import condensed
from rollout.loop.results import BranchPoint, PhaseTimes, ToolCallRecord, TrajectoryResult, TurnRecord
from rollout.loop.state import CallTools, Finish, Generate, RequestState, TrajectoryMachine
from rollout.loop.task import Task
from rollout.loop.traces import TrajectoryTrace
from rollout.tokens.conversation import MessageTurn
from rollout.tokens.tokenizer import ChatTemplateError, Message
from rollout.tokens.trajectory import TokenBuilder, Trajectory
from rollout.tools.base import BranchRefused, InfraError, ToolOutcome, ToolResponse
from rollout.tools.formats.calls import MalformedCall, ToolCall

if TYPE_CHECKING:
    from rollout.loop.agent_loop import AgentLoop

_LOG = logging.getLogger("fairbox.rollout")


@dataclass(frozen=True, slots=True)
class _Part:
    """Beginning of a part of a trajectory: a conversation, as text and as ids."""

    turns: tuple[MessageTurn, ...]
    text: str
    ids: tuple[int, ...]


class TrajectoryRun:
    """`async with loop.open(task, index=0, seed=1) as run: await run.play()`, then `run.result()`."""

    def __init__(self, loop: AgentLoop, task: Task, index: int, seed: int | None, attempt: int) -> None:
        self._loop = loop
        self._task = task
        self._index = index
        self._seed = seed
        self._attempt = attempt
        self._id = uuid.uuid4().hex
        self._error: str | None = None
        self._opening: str | None = self._rendered()
        """The prompt's text, where the next turn follows a prompt and no answers."""
        self._builder = TokenBuilder(loop.chat.encode(self._opening))
        self._earlier: list[Trajectory] = []
        """Parts that are closed."""
        self._turns: list[MessageTurn] = []
        """Turns after the prompt's messages, as the present part's prompt and its turns show them."""
        self._machine = TrajectoryMachine(
            loop.limits, prompt_tokens=len(self._builder), max_model_tokens=loop.engine.max_model_tokens
        )
        self._messages: list[Message] = list(task.messages)
        self._records: list[ToolCallRecord] = []
        self._calls: tuple[ToolCall | MalformedCall, ...] = ()
        self._ended = True
        """Says whether the last turn ended with the end-of-turn token."""
        self._times = PhaseTimes()
        self._tool_rewards: dict[str, float] = {}
        self._decision: Generate | Finish | None = None
        """The next step; None before the start."""
        self._busy = False
        """Says whether a turn is played, or the trajectory is forked."""
        self._parent_id: str | None = None
        self._branch_point: BranchPoint | None = None
        self._branches = 0
        """Number of forks made of it."""
        self._turn_records: list[TurnRecord] = []
        self._began = loop.clock.now()
        self._started_at = time.time()
        self._trace = TrajectoryTrace(self._id)

    def _rendered(self) -> str:
        """The prompt's text; empty, with the reason, where the template does not take the task's messages."""
        try:
            return self._loop.chat.prompt_text(self._task.messages, self._loop.tools.schemas)
        except ChatTemplateError as error:
            self._error = f"{self._task.where}: {error}"
            return ""

    @property
    def trajectory_id(self) -> str:
        return self._id

    @property
    def ended(self) -> bool:
        """Says whether there is a result."""
        return isinstance(self._decision, Finish)

    async def __aenter__(self) -> Self:
        self._trace.begin(uid=self._task.uid, index=self._index, attempt=self._attempt, parent_id=self._parent_id)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._trace.part("rollout.release"):
            await to_its_end(self._release())
        reason = self._decision.reason if isinstance(self._decision, Finish) else None
        self._trace.end(self._machine.state, self._machine.usage.turns, reason)

    async def play(self) -> None:
        """From where it is to its end."""
        while await self.turn():
            pass

    async def turn(self) -> bool:
        """One turn, with the answers to its calls. Whether another one follows. RuntimeError where none does."""
        if self._busy or self.ended:
            raise RuntimeError(f"trajectory {self._id} {'is in the middle of a turn' if self._busy else 'has ended'}")
        self._busy = True
        try:
            with self._trace.part("rollout.turn", turn=self._machine.usage.turns):
                self._decision = await self._turn()
        except (InfraError, EngineUnavailable) as error:
            self._error = str(error)
            self._decision = self._machine.failed()
        except asyncio.CancelledError:
            if cancelled_here():
                raise
            self._error = "a call was cancelled that nobody here has cancelled"  # as by a channel that was closed
            self._decision = self._machine.failed()
        except Exception as error:  # the boundary of a trajectory: a defect of ours must not end the others
            _LOG.exception("trajectory %s of %s failed", self._id, self._task.where)
            self._error = f"{type(error).__name__}: {error}"
            self._decision = self._machine.failed()
        finally:
            self._busy = False
        return not self.ended

    async def branch(self, count: int) -> list[TrajectoryRun]:
        """See `AgentLoop.branch`."""
        if count < 1:
            raise FieldErrors([FieldError("count", f"is {count}, must be at least 1")])
        if isinstance(self._decision, Finish):
            raise BranchRefused(f"trajectory {self._id} has ended: {self._decision.reason}")
        if self._busy:
            raise BranchRefused(f"trajectory {self._id} is in the middle of a turn")
        self._busy = True
        try:
            await self._begin()
            if isinstance(self._decision, Finish):
                raise BranchRefused(f"trajectory {self._id} has ended: {self._decision.reason}")
            ids = [uuid.uuid4().hex for _ in range(count)]
            await self._loop.tools.branch(self._id, ids)
        finally:
            self._busy = False
        return [self._fork(trajectory_id) for trajectory_id in ids]

    def _fork(self, trajectory_id: str) -> TrajectoryRun:
        fork = copy.copy(self)
        fork._id = trajectory_id
        fork._seed = derived_seed(self._seed, "branch", self._branches)
        self._branches += 1
        fork._branches = 0
        fork._builder = self._builder.fork()
        fork._machine = self._machine.fork()
        fork._earlier = list(self._earlier)
        fork._turns = list(self._turns)
        fork._messages = list(self._messages)
        fork._records = list(self._records)
        fork._turn_records = list(self._turn_records)
        fork._tool_rewards = {}
        fork._trace = TrajectoryTrace(trajectory_id)
        fork._busy = False
        fork._parent_id = self._id
        fork._branch_point = BranchPoint(self._machine.usage.turns, self._builder.response_length)
        return fork

    async def _begin(self) -> None:
        """The first decision, where there is none yet."""
        if self._decision is None and self._error is not None:
            self._decision = self._machine.refused()
        if self._decision is None:
            await self._loop.tools.create(self._id, self._task.tools_kwargs)
            self._decision = self._machine.start()

    async def _turn(self) -> Generate | Finish:
        await self._begin()
        decision: Generate | CallTools | Finish | None = self._decision
        if isinstance(decision, Generate):
            decision = await self._generate(decision)
        if isinstance(decision, CallTools):
            decision = await self._call_tools(decision)
        if isinstance(decision, Finish):
            self._tool_rewards = await self._loop.tools.rewards(self._id)
        assert isinstance(decision, Generate | Finish)
        return decision

    async def _release(self) -> None:
        """Releases the tools; a failure to do so is not the trajectory's."""
        try:
            await self._loop.tools.release(self._id)
        except Exception as error:  # the boundary of a trajectory, as above
            _LOG.warning("trajectory %s: a tool could not be released: %s", self._id, error)

    def result(self) -> TrajectoryResult:
        """Returns the trajectory's result. Raises RuntimeError if it has not ended."""
        if not isinstance(self._decision, Finish):
            raise RuntimeError(f"trajectory {self._id} has not ended")
        failed = self._machine.state is RequestState.FAILED
        return TrajectoryResult(
            trajectory_id=self._id,
            uid=self._task.uid,
            index=self._index,
            trajectory=self._builder.build(),
            messages=tuple(self._messages),
            tool_calls=tuple(self._records),
            state=self._machine.state,
            stop_reason=self._decision.reason,
            cause=Cause.INFRA if failed else Cause.POLICY if self._machine.usage.turns else Cause.TASK,
            turns=self._machine.usage.turns,
            sampling=replace(self._loop.sampling, seed=self._seed, stop_token_ids=self._loop.chat.stop_token_ids),
            times=replace(self._times, total_s=self._elapsed()),
            started_at=self._started_at,
            turn_records=tuple(self._turn_records),
            attempts=self._attempt,
            error=self._error,
            tool_rewards=self._tool_rewards,
            parent_id=self._parent_id,
            branch_point=self._branch_point,
            earlier=tuple(self._earlier),
        )

    def _elapsed(self) -> float:
        """Seconds since it started."""
        return self._loop.clock.now() - self._began

    async def _generate(self, decision: Generate) -> CallTools | Finish:
        loop = self._loop
        params = replace(
            loop.sampling,
            max_new_tokens=decision.max_new_tokens,
            stop_token_ids=loop.chat.stop_token_ids,
            seed=derived_seed(self._seed, "turn", self._machine.usage.turns),
        )
        request = GenerationRequest(
            request_id=uuid.uuid4().hex,
            trajectory_id=self._id,
            input_ids=self._builder.ids,
            params=params,
            queue_timeout_s=loop.queue_timeout_s,
            time_limit_s=decision.time_limit_s,
        )
        began_s = self._elapsed()
        with tracing.span(
            "rollout.generate", request_id=request.request_id, prompt_tokens=len(request.input_ids)
        ) as span:
            result = await loop.engine.generate(request)
            facts = {"tokens": len(result.ids), "finish": result.finish.value}
            span.set_attributes(tracing.named({**facts, "queue_s": result.queue_s, "run_s": result.run_s}))
        self._builder.add_sampled(result)
        self._turn_records.append(TurnRecord(began_s, self._elapsed(), result.finish))
        self._times = replace(
            self._times,
            queue_s=self._times.queue_s + result.queue_s,
            engine_s=self._times.engine_s + result.run_s,
        )
        text = loop.chat.turn_text(result.ids)
        self._messages.append({"role": "assistant", "content": text})
        self._ended = loop.chat.has_ended(result.ids)
        self._calls = loop.tool_format.parse(loop.chat.in_thought(text, self._opening), loop.tools.schemas)
        self._opening = None
        return self._machine.generated(
            tokens=len(result.ids),
            finish=result.finish,
            calls=len(self._calls),
            charged_s=result.run_s,
            finals=loop.tools.finishing(self._calls),
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
        self._turn_records[-1] = replace(self._turn_records[-1], answered_s=self._elapsed())
        refs = [call.ref for call in self._calls]
        between = chat.between_turns(texts, ended=self._ended, refs=refs)
        self._turns.append(MessageTurn(str(self._messages[-1]["content"]), tuple(texts), tuple(refs)))
        final = any(response.final for response in responses)
        part = None if final else self._next_part(len(self._builder) + len(between))
        following = self._machine.answered(
            tokens=len(between),
            charged_s=self._loop.tools.charged_s(self._calls, responses),
            final=final,
            new_prompt_tokens=None if part is None else len(part.ids),
        )
        if isinstance(following, Generate):
            if part is None:
                self._builder.add_tool(between)
            else:
                self._begin_part(part)
            answers = enumerate(zip(texts, refs, strict=True))
            self._messages += [chat.tool_message(text, ref, index) for index, (text, ref) in answers]
        return following

    def _next_part(self, tokens: int) -> _Part | None:
        """The part that the next turn begins; None where it goes on in this one, which would then have `tokens` ids.

        A part that would itself be too long is none: closing one after each turn would help nobody.
        """
        bounds, chat = self._loop.condense, self._loop.chat
        if bounds.at_tokens is None or tokens < bounds.at_tokens:
            return None
        turns = condensed(self._turns, bounds.keep_last)
        if turns is None:
            return None
        text = chat.conversation.whole(self._task.messages, self._loop.tools.schemas, turns)
        ids = chat.encode(text)
        return _Part(turns, text, ids) if len(ids) < bounds.at_tokens else None

    def _begin_part(self, part: _Part) -> None:
        self._earlier.append(self._builder.build())
        self._builder = TokenBuilder(part.ids)
        self._turns = list(part.turns)
        self._opening = part.text

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
                    unshown=dict(response.unshown),
                    reward=response.reward,
                )
            )
        self._times = replace(
            self._times,
            tool_wait_s=self._times.tool_wait_s + sum(response.wait_s for response in responses),
            tool_run_s=self._times.tool_run_s + sum(response.run_s for response in responses),
        )
