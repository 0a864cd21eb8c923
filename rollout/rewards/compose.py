"""A reward that is composed of functions: the sum of their values, each times its weight.

Invariants: it is the same whatever the order in which the functions answer; no function's failure is a zero, and none
hides another's; no part is overwritten. The value has every function, or there is none.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import math
import numbers
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from executor_service import Cause
from rollout.rewards.base import NotScored, Reward, RewardFault, RewardServices, Sample

_LOG = logging.getLogger("fairbox.rollout")


@dataclass(frozen=True, slots=True)
class RewardEntry:
    """One function of a composition, checked."""

    name: str
    """Name of its parts; no other function of the composition has it."""
    function: Callable[..., Any]
    weight: float = 1.0
    arguments: Mapping[str, Any] = field(default_factory=dict)
    services: bool = False
    """True if it takes the services."""

    async def score(self, sample: Sample, services: RewardServices) -> Reward | NotScored:
        """The function's reward, its own weight not applied, or its refusal. Raises nothing but cancellation."""
        try:
            found = self.function(sample, *[services] * self.services, **self.arguments)
            return self._reward(await found if inspect.isawaitable(found) else found)
        except RewardFault as fault:
            return RewardFault(f"{self.name}: {fault}")
        except NotScored as refusal:
            return NotScored(refusal.cause, f"{self.name}: {refusal}")
        except Exception as error:  # the boundary of a function: one that breaks is not the model's wrong answer
            _LOG.exception("reward %s broke on trajectory %s", self.name, sample.trajectory_id or "?")
            return RewardFault(f"{self.name} raised {type(error).__name__}: {error}")

    def _reward(self, found: Any) -> Reward:
        if isinstance(found, Reward):
            return found
        if not isinstance(found, numbers.Real):
            raise RewardFault(f"gave {found!r:.80}, must be a number or a Reward")
        if not math.isfinite(found):
            raise RewardFault(f"gave {found}, must be a finite number")
        return Reward(float(found))


@dataclass(frozen=True, slots=True)
class Composition:
    """Functions and their weights. `name` and `description` are the file's."""

    entries: tuple[RewardEntry, ...]
    name: str = ""
    description: str = ""

    async def score(self, sample: Sample, services: RewardServices | None = None) -> Reward:
        """The weighted sum. Parts: each function's value, not weighted, under its name, and its own parts under
        `name/part`. Functions that wait do so at once.

        Raises NotScored if a function could not score, after all have ended: with the cause INFRA if one of theirs
        is, else TASK. It is a RewardFault if a function is broken.
        """
        given = services or RewardServices()
        async with asyncio.TaskGroup() as group:
            started = [group.create_task(entry.score(sample, given)) for entry in self.entries]
        outcomes = [
            RewardFault(f"{entry.name}: what it waited for was cancelled") if task.cancelled() else task.result()
            for entry, task in zip(self.entries, started, strict=True)
        ]
        refusals = [outcome for outcome in outcomes if isinstance(outcome, NotScored)]
        if refusals:
            raise _worst(refusals)
        return self._sum([outcome for outcome in outcomes if isinstance(outcome, Reward)])

    def _sum(self, rewards: Sequence[Reward]) -> Reward:
        parts: dict[str, float] = {}
        turns: dict[int, float] = {}
        for entry, reward in zip(self.entries, rewards, strict=True):
            own = {entry.name: reward.value} | {f"{entry.name}/{part}": value for part, value in reward.parts.items()}
            for name, value in own.items():
                if name in parts:
                    raise RewardFault(f"two functions give a part of the name {name!r}; name one of them otherwise")
                parts[name] = float(value)
            for turn, value in reward.turns.items():
                turns[turn] = turns.get(turn, 0.0) + entry.weight * value
        total = sum(entry.weight * reward.value for entry, reward in zip(self.entries, rewards, strict=True))
        if not all(map(math.isfinite, (total, *turns.values()))):
            raise RewardFault(f"the weighted sum of {', '.join(parts)} is {total}, must be a finite number")
        return Reward(float(total), parts, turns)


def _worst(refusals: Sequence[NotScored]) -> NotScored:
    """One refusal for all: broken functions come before failed services, these before what the task lacks."""
    problem = "; ".join(str(refusal) for refusal in refusals)
    if any(isinstance(refusal, RewardFault) for refusal in refusals):
        return RewardFault(problem)
    infra = any(refusal.cause is Cause.INFRA for refusal in refusals)
    return NotScored(Cause.INFRA if infra else Cause.TASK, problem)
