"""Plays trajectories, and forks them. How one is played is in `rollout.loop.run`.

Invariants: a failure of engine or tools ends a trajectory as FAILED with cause INFRA and raises nothing; the tools are
released whatever happens.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from fairbox.clock import Clock, MonotonicClock
from fairbox.errors import ConfigError
from rollout.engines.base import Engine, SamplingParams
from rollout.journal import RunJournal
from rollout.loop.condense import Condensation
from rollout.loop.limits import Limits
from rollout.loop.results import TrajectoryResult
from rollout.loop.run import TrajectoryRun
from rollout.loop.task import Task
from rollout.tokens.chat import ChatTemplate
from rollout.tokens.drift import DriftCounter
from rollout.tools.formats.calls import ToolCallFormat
from rollout.tools.formats.marked import HERMES
from rollout.tools.toolbox import Toolbox


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
    turn_timeout_s: float = 3600.0
    """Longest time of a turn behind the queue. Its tokens are bounded, so an engine that takes longer hangs: INFRA."""
    tool_format: ToolCallFormat = HERMES
    """Format of the model's tool calls; see `rollout.tools.find_format`."""
    drift: DriftCounter | None = None
    """Compares trajectories that have ended with what their conversations would be encoded to; condensed ones are left
    out."""
    condense: Condensation = field(default_factory=Condensation)
    """When old answers of tools are left out of the context."""
    clock: Clock = field(default_factory=MonotonicClock)
    journal: RunJournal | None = None
    """Records what `run` plays, and goes on from what it has. Trajectories that are opened are not recorded."""

    def __post_init__(self) -> None:
        if self.condense.at_tokens is not None and self.chat.conversation.style.calls:
            raise ConfigError(
                "condense.at_tokens is set, but the chat template takes the assistant's calls as data alone, so that a "
                "conversation can't be given to it anew as the model wrote it"
            )

    def at(self, temperature: float | None) -> AgentLoop:
        """The same loop, sampling at another temperature; None: at its own."""
        if temperature is None:
            return self
        return replace(self, sampling=replace(self.sampling, temperature=temperature))

    async def run(self, task: Task, *, index: int, seed: int | None, attempt: int = 1) -> TrajectoryResult:
        """One trajectory of a task."""
        journal = None if self.journal is None else await self.journal.trajectory(index, attempt)
        async with TrajectoryRun(self, task, index, seed, attempt, journal) as run:
            await run.play()
        return self._compared(run.result(), len(task.messages))

    def _compared(self, result: TrajectoryResult, prompt_messages: int) -> TrajectoryResult:
        if self.drift is not None and not result.earlier:
            self.drift.see(
                result.trajectory_id,
                result.trajectory,
                result.messages,
                prompt_messages=prompt_messages,
                tools=self.tools.schemas,
            )
        return result

    def open(self, task: Task, *, index: int, seed: int | None, attempt: int = 1) -> TrajectoryRun:
        """A trajectory that is played turn by turn: `async with loop.open(task, index=0, seed=1) as run`."""
        return TrajectoryRun(self, task, index, seed, attempt)

    async def branch(self, run: TrajectoryRun, count: int) -> list[TrajectoryRun]:
        """`count` trajectories that go on from where `run` is, between two turns: each with its tokens, its messages,
        what it has used, and a copy of its tools' state. Each is entered, played and left like `run`, which goes on
        too. All or none.

        Raises BranchRefused with the reason where `run` has ended or is in the middle of a turn, or a tool can't
        branch, and InfraError where a tool's service failed.
        """
        return await run.branch(count)
