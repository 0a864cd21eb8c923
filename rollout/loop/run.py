"""One trajectory while it runs: asks the state machine what to do, does it, and keeps tokens and records.

Invariants: the engine gets exactly the builder's ids; each turn has a seed of its own, and one that the engine did not
do in time is the engine's failure; every call of a turn is answered, in order; a part that is closed never changes; a
failure of engine or tools ends the trajectory as FAILED with cause INFRA and raises nothing; the tools are released
whatever happens.
A trajectory is forked between two turns, when everything that it is made of can be copied: its tokens, its messages,
its usage and, by the tools themselves, their state.
"""

from __future__ import annotations

import asyncio
import copy
import hashlib
import logging
import uuid
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Self

from opentelemetry.trace import INVALID_SPAN, Span, StatusCode

from executor_service import Cause
from fairbox.errors import FieldError, FieldErrors
from fairbox.telemetry import logs, tracing
from rollout.cleanup import cancelled_here, to_its_end
from rollout.engines.base import (
    EngineUnavailable,
    FinishReason,
    GenerationRequest,
    GenerationResult,
    derived_seed,
)
from rollout.journal import Answered, JournalError, Opened, Sampled, TrajectoryJournal, Unrecorded
from rollout.loop.condense import condensed
from rollout.loop.limits import StopReason
from rollout.loop.results import TrajectoryResult
from rollout.loop.state import CallTools, Finish, Generate, RequestState, TrajectoryMachine
from rollout.loop.task import Task
from rollout.loop.trajectory_state import PartStart, TrajectoryState
from rollout.tokens.conversation import MessageTurn
from rollout.tokens.tokenizer import ChatTemplateError
from rollout.tokens.trajectory import TokenBuilder
from rollout.tools.base import BranchRefused, InfraError, ToolOutcome, ToolResponse
from rollout.tools.formats.calls import MalformedCall, ToolCall

if TYPE_CHECKING:
    from rollout.loop.agent_loop import AgentLoop

_LOG = logging.getLogger("fairbox.rollout")


class _Trace:
    """From `begin()` to `end()`: `with trace.part("rollout.turn", turn=0)` for what it does. Before and after that, and
    so for a fork that was never entered, parts are not traced."""

    __slots__ = ("_span", "_trajectory_id")

    def __init__(self, trajectory_id: str) -> None:
        self._trajectory_id = trajectory_id
        self._span: Span = INVALID_SPAN

    def begin(self, *, uid: str, index: int, attempt: int, parent_id: str | None) -> None:
        """The trajectory is entered."""
        if tracing.enabled():
            facts: dict[str, tracing.Value] = {"uid": uid, "index": index, "attempt": attempt}
            self._span = tracing.trajectory_span(self._trajectory_id, **facts, parent_id=parent_id or "")

    @contextmanager
    def part(self, name: str, **attributes: tracing.Value) -> Iterator[None]:
        """Something that the trajectory does, with its id in the log."""
        with logs.bound(trajectory=self._trajectory_id), tracing.span(name, self._span, **attributes):
            yield

    def end(self, state: RequestState, turns: int, reason: StopReason | None) -> None:
        """The trajectory is left; `reason` None: in the middle."""
        span, self._span = self._span, INVALID_SPAN
        stop_reason = "" if reason is None else reason.value
        span.set_attributes(tracing.named({"state": state.value, "turns": turns, "stop_reason": stop_reason}))
        if state is RequestState.FAILED:
            span.set_attribute("fairbox.cause", Cause.INFRA.value)
            span.set_status(StatusCode.ERROR, "INFRA")
        span.end()


class TrajectoryRun:
    """`async with loop.open(task, index=0, seed=1) as run: await run.play()`, then `run.result()`."""

    def __init__(
        self,
        loop: AgentLoop,
        task: Task,
        index: int,
        seed: int | None,
        attempt: int,
        journal: TrajectoryJournal | None = None,
    ) -> None:
        self._loop = loop
        self._journal = journal or Unrecorded()
        self._task = task
        self._index = index
        self._attempt = attempt
        opening, error = self._rendered()
        builder = TokenBuilder(loop.chat.encode(opening))
        machine = TrajectoryMachine(
            loop.limits, prompt_tokens=len(builder), max_model_tokens=loop.engine.max_model_tokens
        )
        messages = list(task.messages)
        self._state = TrajectoryState(seed, builder, machine, messages, opening, loop.clock.now(), error=error)
        self._calls: tuple[ToolCall | MalformedCall, ...] = ()
        self._ended = True
        """True if the last turn ended with the end-of-turn token."""
        self._busy = False
        """True while a turn is played, or the trajectory is forked."""
        self._trace = _Trace(self._state.trajectory_id)

    def _rendered(self) -> tuple[str, str | None]:
        """The prompt's text; empty, with the reason, if the template does not take the task's messages."""
        try:
            return self._loop.chat.prompt_text(self._task.messages, self._loop.tools.schemas), None
        except ChatTemplateError as error:
            return "", f"{self._task.where}: {error}"

    @property
    def trajectory_id(self) -> str:
        return self._state.trajectory_id

    @property
    def ended(self) -> bool:
        """Says whether there is a result."""
        return self._state.finish is not None

    async def __aenter__(self) -> Self:
        state = self._state
        task = hashlib.sha256(array("q", state.builder.ids))
        task.update(repr((state.seed, self._loop.sampling)).encode())
        opened = await self._journal.opened(Opened(state.trajectory_id, state.started_at, task.hexdigest()))
        state.trajectory_id, state.started_at = opened.trajectory_id, opened.started_at
        self._trace = _Trace(state.trajectory_id)
        self._trace.begin(uid=self._task.uid, index=self._index, attempt=self._attempt, parent_id=self._state.parent_id)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._journal.ended is None:  # else nothing was begun
            with self._trace.part("rollout.release"):
                await to_its_end(self._release())
        machine, finish = self._state.machine, self._state.finish
        self._trace.end(machine.state, machine.usage.turns, None if finish is None else finish.reason)

    async def play(self) -> None:
        """From where it is to its end."""
        while await self.turn():
            pass
        ended = await self._journal.end(self._elapsed(), self._state.error)
        self._go_on_from(ended.total_s)

    async def turn(self) -> bool:
        """Plays one turn, with the answers to its calls. True: another follows. RuntimeError if it has ended."""
        if self._busy or self.ended:
            problem = "is in the middle of a turn" if self._busy else "has ended"
            raise RuntimeError(f"trajectory {self.trajectory_id} {problem}")
        self._busy = True
        try:
            with self._trace.part("rollout.turn", turn=self._state.machine.usage.turns):
                self._state.decision = await self._turn()
        except (InfraError, EngineUnavailable) as error:
            self._state.fail(str(error))
        except JournalError:
            raise
        except asyncio.CancelledError:
            if cancelled_here():
                raise
            self._state.fail("a call was cancelled that nobody here has cancelled")  # as by a channel that was closed
        except Exception as error:  # the boundary of a trajectory: a defect of ours must not end the others
            _LOG.exception("trajectory %s of %s failed", self.trajectory_id, self._task.where)
            self._state.fail(f"{type(error).__name__}: {error}")
        finally:
            self._busy = False
        return not self.ended

    async def branch(self, count: int) -> list[TrajectoryRun]:
        """See `AgentLoop.branch`."""
        if count < 1:
            raise FieldErrors([FieldError("count", f"is {count}, must be at least 1")])
        self._refuse_if_ended()
        if self._busy:
            raise BranchRefused(f"trajectory {self.trajectory_id} is in the middle of a turn")
        self._busy = True
        try:
            await self._begin()
            self._refuse_if_ended()
            ids = [uuid.uuid4().hex for _ in range(count)]
            await self._loop.tools.branch(self.trajectory_id, ids)
        finally:
            self._busy = False
        return [self._fork(trajectory_id) for trajectory_id in ids]

    def _refuse_if_ended(self) -> None:
        if (finish := self._state.finish) is not None:
            raise BranchRefused(f"trajectory {self.trajectory_id} has ended: {finish.reason}")

    def _fork(self, trajectory_id: str) -> TrajectoryRun:
        fork = copy.copy(self)
        fork._state = self._state.fork(trajectory_id)
        fork._trace = _Trace(trajectory_id)
        fork._busy = False
        return fork

    async def _begin(self) -> None:
        """Makes the first decision, if there is none yet."""
        state = self._state
        if state.decision is None and state.error is not None:
            state.decision = state.machine.refused()
        if state.decision is None:
            if self._journal.ended is None:  # else nothing will be done any more
                await self._loop.tools.ready()
                await self._loop.tools.create(self.trajectory_id, self._task.tools_kwargs)
            state.decision = state.machine.start()

    async def _turn(self) -> Generate | Finish:
        await self._begin()
        decision: Generate | CallTools | Finish | None = self._state.decision
        if isinstance(decision, Generate):
            decision = await self._generate(decision)
        if isinstance(decision, CallTools):
            decision = await self._call_tools(decision)
        if isinstance(decision, Finish):
            rewards = partial(self._loop.tools.rewards, self.trajectory_id)
            self._state.tool_rewards = await self._journal.rewards(rewards)
        assert isinstance(decision, Generate | Finish)
        return decision

    async def _release(self) -> None:
        """Releases the tools; a failure to do so is not the trajectory's."""
        try:
            await self._loop.tools.release(self.trajectory_id)
        except Exception as error:  # the boundary of a trajectory, as above
            _LOG.warning("trajectory %s: a tool could not be released: %s", self.trajectory_id, error)

    def result(self) -> TrajectoryResult:
        """Returns the trajectory's result. Raises RuntimeError if it has not ended."""
        if (finish := self._state.finish) is None:
            raise RuntimeError(f"trajectory {self.trajectory_id} has not ended")
        loop = self._loop
        return self._state.result(
            finish,
            self._task,
            index=self._index,
            attempts=self._attempt,
            sampling=replace(loop.sampling, seed=self._state.seed, stop_token_ids=loop.chat.stop_token_ids),
            total_s=self._elapsed(),
        )

    def _elapsed(self) -> float:
        """Seconds since it started."""
        return self._loop.clock.now() - self._state.began_s

    def _go_on_from(self, second: float) -> None:
        """Sets the trajectory's clock to what it showed when an effect was recorded."""
        self._state.began_s = self._loop.clock.now() - second

    async def _generate(self, decision: Generate) -> CallTools | Finish:
        loop, state = self._loop, self._state
        sampled = await self._journal.once(Sampled, partial(_sample, loop, state, decision))
        self._go_on_from(sampled.ended_s)
        result: GenerationResult = sampled.turn
        text = loop.chat.turn_text(result.ids)
        self._ended = loop.chat.has_ended(result.ids)
        self._calls = loop.tool_format.parse(loop.chat.in_thought(text, state.opening), loop.tools.schemas)
        state.add_sampled(result, text, sampled.began_s, sampled.ended_s)
        return state.machine.generated(
            tokens=len(result.ids),
            finish=result.finish,
            calls=len(self._calls),
            finals=loop.tools.finishing(self._calls),
        )

    async def _call_tools(self, decision: CallTools) -> Generate | Finish:
        chat, state, tools = self._loop.chat, self._state, self._loop.tools
        rebuild = partial(tools.rebuild, self.trajectory_id, self._calls)
        try:
            answered = await self._journal.calls(
                partial(self._answer, decision), rebuild, repeatable=tools.repeatable(self._calls)
            )
        except InfraError:
            lost = [ToolResponse("", ToolOutcome.INFRA)] * len(self._calls)
            state.record_calls(self._calls, lost, [""] * len(lost))
            raise
        responses = answered.responses
        self._go_on_from(answered.ended_s)
        texts = [chat.defuse(response.text) for response in responses]
        state.record_calls(self._calls, responses, texts)
        state.turn_records[-1] = replace(state.turn_records[-1], answered_s=answered.ended_s)
        refs = [call.ref for call in self._calls]
        between = chat.between_turns(texts, ended=self._ended, refs=refs)
        state.turns.append(MessageTurn(str(state.messages[-1]["content"]), tuple(texts), tuple(refs)))
        final = any(response.final for response in responses)
        part = None if final else self._next_part(len(state.builder) + len(between))
        following = state.machine.answered(
            tokens=len(between),
            charged_s=tools.charged_s(self._calls, responses),
            final=final,
            new_prompt_tokens=None if part is None else len(part.ids),
        )
        if isinstance(following, Generate):
            if part is None:
                state.builder.add_tool(between)
            else:
                state.begin_part(part)
            answers = enumerate(zip(texts, refs, strict=True))
            state.messages += [chat.conversation.tool_message(text, ref, index) for index, (text, ref) in answers]
        return following

    async def _answer(self, decision: CallTools) -> Answered:
        """Has the tools answer the turn's calls."""
        responses = await self._loop.tools.answer(
            self.trajectory_id, self._calls, run=decision.run, time_limit_s=decision.time_limit_s
        )
        return Answered(self._elapsed(), tuple(responses))

    def _next_part(self, tokens: int) -> PartStart | None:
        """The part that the next turn begins; None if it goes on in this one, which would then have `tokens` ids.

        A part that would itself be too long is none: closing one after each turn would help nobody.
        """
        bounds, chat = self._loop.condense, self._loop.chat
        if bounds.at_tokens is None or tokens < bounds.at_tokens:
            return None
        turns = condensed(self._state.turns, bounds.keep_last)
        if turns is None:
            return None
        text = chat.conversation.whole(self._task.messages, self._loop.tools.schemas, turns)
        ids = chat.encode(text)
        return PartStart(turns, text, ids) if len(ids) < bounds.at_tokens else None


async def _sample(loop: AgentLoop, state: TrajectoryState, decision: Generate) -> Sampled:
    """The turn, as a journal has it. Raises EngineUnavailable."""
    params = replace(
        loop.sampling,
        max_new_tokens=decision.max_new_tokens,
        stop_token_ids=loop.chat.stop_token_ids,
        seed=derived_seed(state.seed, "turn", state.machine.usage.turns),
    )
    request = GenerationRequest(
        request_id=uuid.uuid4().hex,
        trajectory_id=state.trajectory_id,
        input_ids=state.builder.ids,
        params=params,
        queue_timeout_s=loop.queue_timeout_s,
        time_limit_s=loop.turn_timeout_s,
    )
    began_s = loop.clock.now() - state.began_s
    with tracing.span("rollout.generate", request_id=request.request_id, prompt_tokens=len(request.input_ids)) as span:
        result = await loop.engine.generate(request)
        facts = {"tokens": len(result.ids), "finish": result.finish.value}
        span.set_attributes(tracing.named({**facts, "queue_s": result.queue_s, "run_s": result.run_s}))
    if result.finish is FinishReason.ABORT:
        raise EngineUnavailable(f"a turn was not done within {loop.turn_timeout_s:g} s")
    return Sampled(began_s, loop.clock.now() - state.began_s, result)
