"""The life of one trajectory as a pure state machine: what happened goes in, what to do next comes out.

    PENDING -> RUNNING <-> TOOL_CALLING -> COMPLETED, and FAILED from anywhere

It holds counts, never tokens or text, and reads no clock.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from enum import StrEnum

from rollout.engines.base import FinishReason
from rollout.loop.limits import Limits, StopReason, Usage


class RequestState(StrEnum):
    """States of a trajectory."""

    PENDING = "pending"
    """Not started."""
    RUNNING = "running"
    """The engine samples a turn."""
    TOOL_CALLING = "tool_calling"
    """Tools answer the calls of a turn."""
    COMPLETED = "completed"
    """Ended by the model or a limit. Scored."""
    FAILED = "failed"
    """Ended by the service. Masked."""


@dataclass(frozen=True, slots=True)
class Generate:
    """Sample the next turn."""

    max_new_tokens: int


@dataclass(frozen=True, slots=True)
class CallTools:
    """Answer the calls of the turn: run those of finish tools and, unless one of these ends the trajectory, the first
    `run` of the others; refuse the rest as over budget."""

    run: int
    time_limit_s: float | None


@dataclass(frozen=True, slots=True)
class Finish:
    """The trajectory has ended."""

    reason: StopReason


Decision = Generate | CallTools | Finish


class TrajectoryMachine:
    """One trajectory. `max_model_tokens` is the engine's; the limits may be stricter."""

    def __init__(self, limits: Limits, *, prompt_tokens: int, max_model_tokens: int) -> None:
        model_tokens = min(max_model_tokens, limits.max_model_tokens or max_model_tokens)
        self._limits = replace(limits, max_model_tokens=model_tokens)
        self.usage = Usage(prompt_tokens)
        self.state = RequestState.PENDING
        self._reached: StopReason | None = None
        """The limit that ends the trajectory unless a finish tool does, while the calls of a turn are answered."""

    def fork(self) -> TrajectoryMachine:
        """Another machine in the same state, with the same usage."""
        return copy.copy(self)  # everything that it holds is immutable

    def start(self) -> Generate | Finish:
        """The first decision."""
        assert self.state is RequestState.PENDING
        return self._next_turn()

    def generated(self, *, tokens: int, finish: FinishReason, calls: int, finals: int = 0) -> CallTools | Finish:
        """A turn of `tokens` ids came back, with `calls` tool calls in it, malformed ones included, of which `finals`
        are of finish tools."""
        assert self.state is RequestState.RUNNING
        used = self.usage
        self.usage = replace(used, turns=used.turns + 1, response_tokens=used.response_tokens + tokens)
        if calls == 0:
            return self._finish(StopReason.ANSWERED if finish is FinishReason.STOP else self._cut_off())
        self._reached = self._limits.reached(self.usage)
        if self._reached is not None and not finals:
            return self._finish(self._reached)
        run = 0 if self._reached is not None else self._others_to_run(calls - finals, finals)
        self.usage = replace(self.usage, tool_calls=self.usage.tool_calls + finals + run)
        self.state = RequestState.TOOL_CALLING
        return CallTools(run, self._limits.time_left_s(self.usage))

    def _others_to_run(self, others: int, finals: int) -> int:
        """Number of a turn's calls that may run beside those of finish tools."""
        most = self._limits.max_tool_calls
        return others if most is None else min(others, max(0, most - self.usage.tool_calls - finals))

    def answered(
        self, *, tokens: int, charged_s: float, final: bool = False, new_prompt_tokens: int | None = None
    ) -> Generate | Finish:
        """The tools' answers are there; with what the template puts around them they are `tokens` ids. `final`: one of
        them ends the trajectory. `new_prompt_tokens`: the next turn would begin a new part, whose prompt has so many
        ids and the answers in it.

        On Generate they are part of the trajectory; on Finish they are not, because no turn follows them.
        """
        assert self.state is RequestState.TOOL_CALLING
        before = self.usage
        reached = StopReason.ANSWERED if final else self._reached
        if reached is not None:
            self.usage = replace(before, charged_s=before.charged_s + charged_s)
            return self._finish(reached)
        after = replace(before, charged_s=before.charged_s + charged_s)
        if new_prompt_tokens is None:
            self.usage = replace(after, response_tokens=before.response_tokens + tokens)
        else:
            self.usage = replace(after, prompt_tokens=new_prompt_tokens, earlier_tokens=before.response_tokens)
        decision = self._next_turn()
        if isinstance(decision, Finish):
            self.usage = after
        return decision

    def refused(self) -> Finish:
        """There is no prompt to begin with."""
        assert self.state is RequestState.PENDING
        return self._finish(StopReason.BAD_PROMPT)

    def failed(self) -> Finish:
        """The service failed. Also after the last turn, while the trajectory is being finished."""
        self.state = RequestState.FAILED
        return Finish(StopReason.INFRA)

    def _next_turn(self) -> Generate | Finish:
        # The number of calls made bounds further calls, not further turns: the answer to the last call may be used.
        reached = self._limits.reached(replace(self.usage, tool_calls=0))
        if reached is not None:
            return self._finish(reached)
        budget = self._limits.turn_budget(self.usage)
        assert budget is not None  # the model's length always bounds it
        self.state = RequestState.RUNNING
        return Generate(budget)

    def _cut_off(self) -> StopReason:
        """The budget that ended a turn that was cut off: a trajectory's limit, or else the turn's own."""
        lengths = replace(self.usage, turns=0, tool_calls=0, charged_s=0.0)
        return self._limits.reached(lengths) or StopReason.TURN_LENGTH

    def _finish(self, reason: StopReason) -> Finish:
        self.state = RequestState.COMPLETED
        return Finish(reason)
