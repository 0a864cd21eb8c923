"""Decides which trajectories run when, which are kept, and when a group is complete. Pure: what happened goes in, what
to do comes out, and time is an argument.

A group is the trajectories of one task. Up to `samples_per_prompt + extra_samples` of it are started, of which
`samples_per_prompt` are kept and handed over:

- one that was scored, as soon as it has ended, while there is room in its group;
- one that is masked, as soon as those of its group that are still to end can't fill its place;
- those that run when their group is full are stragglers: they are cancelled and dropped.

With `keep_groups` the run ends when so many groups are complete; what they hold is handed over group by group, and
everything else is dropped. Over-sampling favours what ends early, which is short: it is off by default.

Invariants: at most `concurrency` run; groups are begun in the order of their tasks; of a complete group exactly
`samples_per_prompt` are handed over, each once; after the deadline nothing is begun; nothing is begun that has no use
any more.
"""

from __future__ import annotations

import math
from bisect import insort
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from fairbox.errors import FieldError, FieldErrors

_RETRY_AFTER_S = 0.5
"""Lets a service that is being restarted come back; doubled with each attempt."""


@dataclass(frozen=True)
class Schedule:
    """Numbers of trajectories and groups, and the run's time limit. Raises FieldErrors."""

    concurrency: int
    """Trajectories that run at once."""
    samples_per_prompt: int = 1
    """Trajectories of each task that are handed over."""
    extra_samples: int = 0
    """Trajectories of each task that may be started beyond them."""
    keep_groups: int | None = None
    """Groups after which the run ends; None: all."""
    time_limit_s: float | None = None
    """Longest time of the whole run; what has not ended then is dropped."""

    def __post_init__(self) -> None:
        least = {"concurrency": 1, "samples_per_prompt": 1, "extra_samples": 0, "keep_groups": 1}
        errors = [
            FieldError(name, f"is {value}, must be at least {bound}")
            for name, bound in least.items()
            if (value := getattr(self, name)) is not None and value < bound
        ]
        if self.time_limit_s is not None and not (math.isfinite(self.time_limit_s) and self.time_limit_s > 0):
            errors.append(FieldError("time_limit_s", f"is {self.time_limit_s}, must be positive, or none"))
        if errors:
            raise FieldErrors(errors)


@dataclass(frozen=True, slots=True)
class Start:
    """Run trajectory `index` of task `group`."""

    index: int
    group: int
    attempt: int


@dataclass(frozen=True, slots=True)
class Cancel:
    """End trajectory `index`, and say when it has: it keeps its place until then."""

    index: int


@dataclass(frozen=True, slots=True)
class HandOver:
    """Trajectory `index` of task `group` is one of those kept."""

    index: int
    group: int


@dataclass(frozen=True, slots=True)
class GroupEnded:
    """Nothing of task `group` comes any more."""

    group: int
    dropped: int
    """Started and not handed over."""
    indices: range
    """Indices of its trajectories, started or not."""


Decision = Start | Cancel | HandOver | GroupEnded


@dataclass(slots=True)
class _Group:
    number: int
    to_start: int
    running: set[int] = field(default_factory=set)
    retrying: set[int] = field(default_factory=set)
    kept: list[int] = field(default_factory=list)
    """In the order in which they were."""
    scored: int = 0
    """Scored trajectories among those kept."""
    spare: deque[int] = field(default_factory=deque)
    """Masked, and kept if nothing better comes."""
    over: bool = False

    @property
    def pending(self) -> int:
        """Number of trajectories that may still be scored."""
        return self.to_start + len(self.running) + len(self.retrying)


class GroupScheduler:
    """`tasks` groups. Call `poll(now)` after every event, and at `wake_at`; nothing is left to do when it is `done`."""

    def __init__(self, schedule: Schedule, tasks: int, retries: int, *, now: float) -> None:
        self._schedule = schedule
        self._retries = retries
        self._each = schedule.samples_per_prompt + schedule.extra_samples
        self._groups = [_Group(number, self._each) for number in range(tasks)]
        self._waiting = deque(self._groups)
        """Groups with trajectories that were not started, in order; some have ended meanwhile."""
        self._open = tasks
        self._complete = 0
        self._attempts: dict[int, int] = {}
        """Attempt of each trajectory that runs."""
        self._again: list[tuple[float, int, int]] = []
        """When, which, attempt: those that are run again, the earliest first."""
        self._deadline = None if schedule.time_limit_s is None else now + schedule.time_limit_s
        self._out: deque[Decision] = deque()
        self.retried = 0
        """Attempts beyond the first."""

    @property
    def running(self) -> int:
        """Number of running trajectories, cancelled ones that have not ended yet included."""
        return len(self._attempts)

    @property
    def done(self) -> bool:
        """Says whether every group has ended, nothing runs, and `poll` has said everything."""
        return not (self._attempts or self._open or self._out)

    @property
    def wake_at(self) -> float | None:
        """When `poll` has something to do although nothing happened; None: never."""
        times = [self._again[0][0]] if self._again else []
        if self._deadline is not None and self._open:
            times.append(self._deadline)
        return min(times, default=None)

    def group_of(self, index: int) -> int:
        """Number of the task that a trajectory belongs to."""
        return index // self._each

    def ended(self, index: int, *, masked: bool, again: bool = False, now: float) -> None:
        """Trajectory `index` has ended by itself; `again`: a masked one may be run again."""
        group, attempt = self._left(index)
        if group.over:
            return  # told to end, and faster
        if masked and again and attempt <= self._retries:
            # Safe: nothing of the failed attempt was handed over, and the next one has an id of its own.
            self.retried += 1
            group.retrying.add(index)
            insort(self._again, (now + _RETRY_AFTER_S * 2 ** (attempt - 1), index, attempt + 1))
        elif masked:
            group.spare.append(index)
        else:
            group.scored += 1
            self._keep(group, index)
        while group.spare and self._schedule.samples_per_prompt - len(group.kept) > group.pending:
            self._keep(group, group.spare.popleft())
        if len(group.kept) == self._schedule.samples_per_prompt:
            self._complete_group(group)

    def cancelled(self, index: int) -> None:
        """Trajectory `index` has ended because it was told to."""
        self._left(index)

    def poll(self, now: float) -> Iterator[Decision]:
        """Yields the decisions to carry out now, in order."""
        if self._deadline is not None and now >= self._deadline:
            self._end_all()
        while self._out:
            decision = self._out.popleft()
            if not (isinstance(decision, Cancel) and decision.index not in self._attempts):  # else it was faster
                yield decision
        while len(self._attempts) < self._schedule.concurrency and (start := self._next(now)) is not None:
            self._attempts[start.index] = start.attempt
            self._groups[start.group].running.add(start.index)
            yield start

    def _next(self, now: float) -> Start | None:
        """Takes the next trajectory to start. Retries come first: they are the oldest."""
        if self._again and self._again[0][0] <= now:
            _, index, attempt = self._again.pop(0)
            group = self._groups[self.group_of(index)]
            group.retrying.remove(index)
            return Start(index, group.number, attempt)
        while self._waiting and not self._waiting[0].to_start:
            self._waiting.popleft()
        if not self._waiting:
            return None
        group = self._waiting[0]
        index = (group.number + 1) * self._each - group.to_start
        group.to_start -= 1
        return Start(index, group.number, 1)

    def _left(self, index: int) -> tuple[_Group, int]:
        group = self._groups[self.group_of(index)]
        group.running.discard(index)
        return group, self._attempts.pop(index)

    def _keep(self, group: _Group, index: int) -> None:
        group.kept.append(index)
        if self._schedule.keep_groups is None:
            self._out.append(HandOver(index, group.number))

    def _complete_group(self, group: _Group) -> None:
        enough = self._schedule.keep_groups
        if enough is not None:
            self._out += (HandOver(index, group.number) for index in group.kept)
        self._end(group, complete=True)
        self._complete += group.scored > 0  # a group without any score teaches nothing
        if self._complete == enough:
            self._end_all()

    def _end_all(self) -> None:
        for group in self._groups:
            if not group.over:
                self._end(group, complete=False)

    def _end(self, group: _Group, *, complete: bool) -> None:
        handed_over = complete or self._schedule.keep_groups is None
        dropped = len(group.running) + len(group.retrying) + len(group.spare) + len(group.kept) * (not handed_over)
        group.over, group.to_start = True, 0
        self._open -= 1
        self._again = [entry for entry in self._again if entry[1] not in group.retrying]
        self._out += map(Cancel, sorted(group.running))
        indices = range(group.number * self._each, (group.number + 1) * self._each)
        self._out.append(GroupEnded(group.number, dropped, indices))
