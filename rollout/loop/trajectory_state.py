"""State of one trajectory between two turns: tokens, messages, records and usage. A fork copies it whole.

Invariants: a part that is closed never changes; a fork shares nothing that changes with the trajectory it was made of,
and draws other seeds.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Self

from executor_service import Cause
from rollout.engines.base import GenerationResult, SamplingParams, derived_seed
from rollout.loop.results import BranchPoint, PhaseTimes, ToolCallRecord, TrajectoryResult, TurnRecord
from rollout.loop.state import Finish, Generate, RequestState, TrajectoryMachine
from rollout.loop.task import Task
from rollout.tokens.conversation import MessageTurn
from rollout.tokens.tokenizer import Message
from rollout.tokens.trajectory import TokenBuilder, Trajectory
from rollout.tools.base import ToolResponse
from rollout.tools.formats.calls import MalformedCall, ToolCall


@dataclass(frozen=True, slots=True)
class PartStart:
    """Beginning of a part of a trajectory: a conversation, as text and as ids."""

    turns: tuple[MessageTurn, ...]
    text: str
    ids: tuple[int, ...]


@dataclass(slots=True)
class TrajectoryState:
    """Everything that a trajectory has come to so far. `seed` is the trajectory's own; None: the engine draws one."""

    seed: int | None
    builder: TokenBuilder
    machine: TrajectoryMachine
    messages: list[Message]
    opening: str | None
    """Text of the prompt, if the next turn follows a prompt and no answers."""
    began_s: float
    """Second of the loop's clock at which the trajectory began."""
    trajectory_id: str = field(default_factory=lambda: uuid.uuid4().hex)
    started_at: float = field(default_factory=time.time)
    """Unix seconds."""
    decision: Generate | Finish | None = None
    """The next step; None before the start."""
    error: str | None = None
    earlier: list[Trajectory] = field(default_factory=list)
    """Parts that are closed."""
    turns: list[MessageTurn] = field(default_factory=list)
    """Turns after the prompt's messages, as the present part's prompt and its turns show them."""
    records: list[ToolCallRecord] = field(default_factory=list)
    turn_records: list[TurnRecord] = field(default_factory=list)
    times: PhaseTimes = field(default_factory=PhaseTimes)
    tool_rewards: dict[str, float] = field(default_factory=dict)
    parent_id: str | None = None
    branch_point: BranchPoint | None = None
    branches: int = 0
    """Number of forks made of it."""

    @property
    def finish(self) -> Finish | None:
        """The end of the trajectory, once it has ended."""
        return self.decision if isinstance(self.decision, Finish) else None

    def fork(self, trajectory_id: str) -> Self:
        """Copies the state under another id, with a seed of its own."""
        seed = derived_seed(self.seed, "branch", self.branches)
        self.branches += 1
        return replace(
            self,
            trajectory_id=trajectory_id,
            seed=seed,
            branches=0,
            builder=self.builder.fork(),
            machine=self.machine.fork(),
            earlier=[*self.earlier],
            turns=[*self.turns],
            messages=[*self.messages],
            records=[*self.records],
            turn_records=[*self.turn_records],
            tool_rewards={},
            parent_id=self.trajectory_id,
            branch_point=BranchPoint(self.machine.usage.turns, self.builder.response_length),
        )

    def fail(self, error: str) -> None:
        """Ends the trajectory as FAILED."""
        self.error = error
        self.decision = self.machine.failed()

    def add_sampled(self, result: GenerationResult, text: str, began_s: float, ended_s: float) -> None:
        """Adds what the engine sampled: ids with logprobs, and their `text`. Times are seconds of the trajectory."""
        self.builder.add_sampled(result)
        self.turn_records.append(TurnRecord(began_s, ended_s, result.finish))
        queue_s, engine_s = self.times.queue_s + result.queue_s, self.times.engine_s + result.run_s
        self.times = replace(self.times, queue_s=queue_s, engine_s=engine_s)
        self.messages.append({"role": "assistant", "content": text})
        self.opening = None

    def begin_part(self, part: PartStart) -> None:
        """Closes the present part and goes on in a new one."""
        self.earlier.append(self.builder.build())
        self.builder = TokenBuilder(part.ids)
        self.turns = list(part.turns)
        self.opening = part.text

    def record_calls(
        self, calls: Sequence[ToolCall | MalformedCall], responses: Sequence[ToolResponse], texts: Sequence[str]
    ) -> None:
        """Records the calls of a turn with their answers. `texts`: the answers as the model reads them."""
        for call, response, text in zip(calls, responses, texts, strict=True):
            name, arguments = (call.name, call.arguments) if isinstance(call, ToolCall) else ("", None)
            self.records.append(
                ToolCallRecord(
                    turn=self.machine.usage.turns,
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
        self.times = replace(
            self.times,
            tool_wait_s=self.times.tool_wait_s + sum(response.wait_s for response in responses),
            tool_run_s=self.times.tool_run_s + sum(response.run_s for response in responses),
        )

    def result(
        self, finish: Finish, task: Task, *, index: int, attempts: int, sampling: SamplingParams, total_s: float
    ) -> TrajectoryResult:
        """Makes the result of an ended trajectory. The cause is TASK if it ended before its first turn."""
        machine = self.machine
        failed = machine.state is RequestState.FAILED
        return TrajectoryResult(
            trajectory_id=self.trajectory_id,
            uid=task.uid,
            index=index,
            trajectory=self.builder.build(),
            messages=tuple(self.messages),
            tool_calls=tuple(self.records),
            state=machine.state,
            stop_reason=finish.reason,
            cause=Cause.INFRA if failed else Cause.POLICY if machine.usage.turns else Cause.TASK,
            turns=machine.usage.turns,
            sampling=sampling,
            times=replace(self.times, total_s=total_s),
            started_at=self.started_at,
            turn_records=tuple(self.turn_records),
            attempts=attempts,
            error=self.error,
            tool_rewards=self.tool_rewards,
            parent_id=self.parent_id,
            branch_point=self.branch_point,
            earlier=tuple(self.earlier),
        )
