"""What every tool promises, in the terms of the trajectory that calls it.

Invariants: `execute` answers every call that the model could have made wrong with text for the model and an outcome;
what the model could not have caused is an InfraError, which never becomes text and never becomes a reward. `create`
and `release` are called once for each trajectory that uses the tool, `release` also after failures.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol, runtime_checkable

from fairbox.errors import FairboxError
from rollout.tools.schema import ToolSchema
from rollout.tools.statistics import ToolStatistics

__all__ = [
    "BranchRefused",
    "BranchingTool",
    "InfraError",
    "MeasuredTool",
    "Tool",
    "ToolOutcome",
    "ToolResponse",
    "is_finish_tool",
    "runs_in_parallel",
]


class InfraError(FairboxError):
    """A tool could not do its job, and the model could not have caused that. The trajectory's cause is INFRA."""


class BranchRefused(FairboxError):  # noqa: N818 - a state of a trajectory or a tool
    """What was to be branched can't be branched now, or never; the text says what and why. Nothing has changed."""


class ToolOutcome(StrEnum):
    """What became of a call."""

    OK = "ok"
    """It ran and succeeded."""
    PROGRAM_ERROR = "program_error"
    """It ran, and the program failed by itself: a nonzero exit, a signal, a compiler's error."""
    TIME_LIMIT = "time_limit"
    """It ran and was ended by its time or CPU limit."""
    RESOURCE_LIMIT = "resource_limit"
    """It ran and was ended by its memory, process or output limit."""
    MALFORMED = "malformed"
    """Not run: the call could not be parsed."""
    BAD_ARGUMENTS = "bad_arguments"
    """Not run: arguments are missing or have a wrong type."""
    UNKNOWN_TOOL = "unknown_tool"
    """Not run: there is no tool of that name."""
    OVER_BUDGET = "over_budget"
    """Not run: the trajectory has no calls left."""
    ENDED = "ended"
    """Not run: another call of its turn has ended the trajectory, so that nobody could have read the answer."""
    INFRA = "infra"
    """The service failed for a call of this turn, whose answers are lost; the trajectory is masked."""

    @property
    def ran(self) -> bool:
        """Whether a program really ran."""
        return self in (
            ToolOutcome.OK,
            ToolOutcome.PROGRAM_ERROR,
            ToolOutcome.TIME_LIMIT,
            ToolOutcome.RESOURCE_LIMIT,
        )


@dataclass(frozen=True, slots=True)
class ToolResponse:
    """The answer to one call."""

    text: str
    """For the model."""
    outcome: ToolOutcome
    truncated: bool = False
    """True when `text` leaves out some of the output; it then says so itself."""
    total_bytes: int = 0
    """Size of the whole output."""
    wait_s: float = 0.0
    """Time in queues."""
    run_s: float = 0.0
    """Time from leaving the queues to the result."""
    unshown: Mapping[str, int] = field(default_factory=dict)
    """MIME type -> bytes of what a program displayed and the model does not see: images, HTML."""
    reward: float | None = None
    """What the tool gives for this call; None where it gives nothing. It is recorded and part of no score by itself."""
    final: bool = False
    """Whether this call ends the trajectory as `answered`. The answer is recorded, and no turn follows that has it."""


class Tool(Protocol):
    """Something that the model can call. One object serves all trajectories at once.

    A tool whose calls of one trajectory must not run at once has an attribute `parallel` that is False: the calls of a
    turn then run one after another in their order, beside those of other tools. One with which the model hands over its
    answer has an attribute `finishes` that is True: its calls come before the others of their turn and are run whatever
    limit is reached; they must cost no more than a check of their arguments. One that can branch is a `BranchingTool`,
    one that knows what it waits for is a `MeasuredTool`.
    """

    @property
    def schema(self) -> ToolSchema: ...

    async def create(self, trajectory_id: str, **options: Any) -> None:
        """Prepares for a trajectory. `options` are those of its task."""
        ...

    async def execute(
        self, trajectory_id: str, arguments: Mapping[str, Any], *, time_limit_s: float | None = None
    ) -> ToolResponse:
        """Answers one call, whose arguments fit the schema. Calls of one trajectory may run at the same time.

        `time_limit_s` is what the trajectory has left; the tool's own limit may be shorter. Raises InfraError.
        """
        ...

    async def calc_reward(self, trajectory_id: str) -> float | None:
        """The tool's own reward for a trajectory, between its last call and `release`; None when it has none."""
        ...

    async def release(self, trajectory_id: str) -> None:
        """Ends what `create` began. Idempotent."""
        ...


@runtime_checkable
class BranchingTool(Protocol):
    """A tool whose state of a trajectory can be forked. One without state branches by doing nothing."""

    async def branch(self, trajectory_id: str, branches: Sequence[str]) -> None:
        """Each of the trajectories `branches` has a copy of the state that `trajectory_id` has now, and is released
        for itself. All or none. Called instead of `create`, while no call runs. Raises BranchRefused and InfraError."""
        ...


@runtime_checkable
class MeasuredTool(Protocol):
    """A tool that tells its waits apart."""

    def statistics(self) -> ToolStatistics: ...


def is_finish_tool(tool: Tool) -> bool:
    """Whether the tool's calls hand over the model's answer."""
    return bool(getattr(tool, "finishes", False))


def runs_in_parallel(tool: Tool) -> bool:
    """Whether calls of one turn to this tool may run at once; tools that don't say are taken to be without state."""
    return bool(getattr(tool, "parallel", True))
