"""The interface of every tool, in the terms of the trajectory that calls it.

Invariants: `execute` answers every call that the model could have made wrong with text for the model and an outcome;
what the model could not have caused is an InfraError, which never becomes text and never becomes a reward. `create`
and `release` are called once for each trajectory that uses the tool, `release` also after failures.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar, Self

from fairbox.errors import FairboxError
from rollout.tools.schema import ToolSchema

if TYPE_CHECKING:
    from rollout.tools.code.client import ToolServices


class InfraError(FairboxError):
    """A tool could not do its job, and the model could not have caused that. The trajectory's cause is INFRA."""


class BranchRefused(FairboxError):
    """A trajectory or tool can't be branched now, or never; the text says which and why. Nothing has changed."""


class ToolOutcome(StrEnum):
    """Outcomes of a call."""

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
    """The service failed for a call of this turn, whose answers are lost: the cause is INFRA, the trajectory masked."""

    @property
    def ran(self) -> bool:
        """Says whether a program really ran."""
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
    """The tool's reward for this call; None if it gives none. It is recorded and part of no score by itself."""
    final: bool = False
    """Says whether this call ends the trajectory as `answered`. Its answer is recorded; no turn follows that has it."""


@dataclass(frozen=True)
class NoSettings:
    """Settings of a tool that has none."""


class Tool(ABC):
    """Something that the model can call: a class with `default_schema` and `execute`. One object serves all
    trajectories at once; a tool that keeps nothing of a trajectory needs no other method."""

    config_type: ClassVar[type[Any]] = NoSettings
    """A dataclass of `fairbox.config.setting` fields. A method `validate(path)` may raise ConfigError."""
    default_schema: ClassVar[ToolSchema]
    parallel: bool = True
    """Says whether calls of one trajectory may run at once. If not, the calls of a turn run one after another in their
    order, beside those of other tools."""
    finishes: bool = False
    """Says whether the model hands its answer over with it. Such calls come before the others of their turn and are run
    whatever limit is reached; they must cost no more than a check of their arguments."""

    def __init__(self, config: Any = None, *, schema: ToolSchema | None = None) -> None:
        self.config = self.config_type() if config is None else config
        self.schema = schema or self.default_schema

    @classmethod
    def from_config(cls, config: Any, services: ToolServices, schema: ToolSchema | None) -> Self:
        """Makes the tool of a file's entry, whose schema may be missing. Opens nothing."""
        return cls(config, schema=schema)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        return None

    async def create(self, trajectory_id: str, **options: Any) -> None:
        """Prepares for a trajectory. `options` are those of its task."""
        return

    @abstractmethod
    async def execute(
        self, trajectory_id: str, arguments: Mapping[str, Any], *, time_limit_s: float | None = None
    ) -> ToolResponse:
        """Answers one call, whose arguments fit the schema. Calls of one trajectory may run at the same time.

        `time_limit_s` is what the trajectory has left; the tool's own limit may be shorter. Raises InfraError.
        """

    async def branch(self, trajectory_id: str, branches: Sequence[str]) -> None:
        """Gives each of the trajectories `branches` a copy of the state that `trajectory_id` has now. All or none;
        each is released for itself. Called instead of `create`, while no call runs. Raises BranchRefused, as a tool
        that says nothing else does, and InfraError."""
        raise BranchRefused(f"the tool {self.schema.name} can't branch: {type(self).__name__} has no method branch()")

    repeatable: bool = False
    """Says whether a call that may have run can be made again when a run goes on after a crash, because nothing outside
    of the trajectory shows that it was made. If not, such a trajectory is played again from its beginning."""

    @property
    def stateful(self) -> bool:
        """Says whether a call may depend on the calls before it. If so, the calls of a run that goes on after a crash
        are made again, and have to be answered as they were."""
        return type(self).create is not Tool.create

    async def calc_reward(self, trajectory_id: str) -> float | Mapping[str, float] | None:
        """Returns the tool's own reward for a trajectory, between its last call and `release`: one number, or several
        by name; None if it has none. Raises InfraError."""
        return None

    async def release(self, trajectory_id: str) -> None:
        """Ends what `create` began. Idempotent."""
        return

    async def ready(self) -> None:
        """Returns when the service that the tool needs works: trajectories do not begin before. Raises InfraError if it
        has failed for too long. A tool without a service is always ready."""
        return

    @property
    def waiting_to_begin(self) -> int:
        """Trajectories that wait in `ready()`, for the tool's figures."""
        return 0
