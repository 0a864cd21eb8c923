"""The scheduler of groups: what runs, what is kept, what is dropped and when it ends."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbox.errors import FieldErrors
from rollout.loop import GroupEnded, GroupScheduler, Schedule
from rollout.loop.groups import Cancel, Decision, HandOver, Start


class World:
    """Does what the scheduler says, and keeps count."""

    def __init__(self, tasks: int, *, retries: int = 0, **options: Any) -> None:
        self.schedule = Schedule(**{"concurrency": 100} | options)
        self.scheduler = GroupScheduler(self.schedule, tasks, retries, now=0.0)
        self.now = 0.0
        self.running: list[int] = []
        self.started: list[tuple[int, int]] = []
        self.cancelled: list[int] = []
        self.kept: list[int] = []
        self.scored: set[int] = set()
        self.groups: list[GroupEnded] = []
        self.poll()

    def poll(self) -> None:
        for decision in self.scheduler.poll(self.now):
            self.do(decision)
        assert len(self.running) == self.scheduler.running <= self.schedule.concurrency

    def do(self, decision: Decision) -> None:
        match decision:
            case Start(index, group, attempt):
                assert group == self.scheduler.group_of(index)
                assert index not in self.running
                assert group not in [ended.group for ended in self.groups]
                self.running.append(index)
                self.started.append((index, attempt))
            case Cancel(index):
                assert index in self.running
                self.cancelled.append(index)
            case HandOver(index, group):
                assert index not in self.kept
                assert group == self.scheduler.group_of(index)
                self.kept.append(index)
            case GroupEnded():
                self.groups.append(decision)

    def end(self, index: int, *, masked: bool = False, again: bool = False, poll: bool = True) -> None:
        self.running.remove(index)
        if not masked:
            self.scored.add(index)
        self.scheduler.ended(index, masked=masked, again=again, now=self.now)
        if poll:
            self.poll()

    def end_cancelled(self) -> None:
        for index in [index for index in self.running if index in self.cancelled]:
            self.running.remove(index)
            self.scheduler.cancelled(index)
        self.poll()


def test_groups_are_begun_in_the_order_of_their_tasks() -> None:
    world = World(3, samples_per_prompt=2, concurrency=3)
    assert world.started == [(0, 1), (1, 1), (2, 1)]
    world.end(2)
    world.end(0)
    assert [index for index, _ in world.started] == [0, 1, 2, 3, 4]
    assert world.kept == [2, 0]


def test_a_full_group_ends_its_stragglers_and_starts_no_more_of_it() -> None:
    world = World(2, samples_per_prompt=2, extra_samples=2, concurrency=3)
    world.end(0)
    assert world.running == [1, 2, 3]
    world.end(2)
    assert world.cancelled == [1, 3]
    assert (world.kept, world.groups) == ([0, 2], [GroupEnded(0, 2, range(4))])
    assert world.running == [1, 3, 4]  # the places of the cancelled are theirs until they have ended
    world.end_cancelled()
    assert world.running == [4, 5, 6]
    assert not world.scheduler.done


def test_a_masked_one_is_kept_only_when_nothing_can_fill_its_place() -> None:
    world = World(1, samples_per_prompt=2, extra_samples=1)
    world.end(0, masked=True)
    assert world.kept == []
    world.end(1, masked=True)
    assert world.kept == [0]
    world.end(2)
    assert world.kept == [0, 2]
    assert world.groups == [GroupEnded(0, 1, range(3))]


def test_without_extras_a_masked_one_is_handed_over_at_once() -> None:
    world = World(1, samples_per_prompt=3)
    world.end(1, masked=True)
    assert world.kept == [1]


def test_failed_ones_are_run_again_first_and_later_each_time() -> None:
    world = World(2, retries=2, concurrency=1)
    world.end(0, masked=True, again=True)
    assert world.started == [(0, 1), (1, 1)]
    assert world.scheduler.wake_at == 0.5
    world.now = 0.5
    world.end(1)
    assert world.started[-1] == (0, 2)
    world.end(0, masked=True, again=True)
    assert world.scheduler.wake_at == 1.5
    world.now = 1.5
    world.poll()
    world.end(0, masked=True, again=True)
    assert world.kept == [1, 0]
    assert (world.scheduler.retried, world.scheduler.done) == (2, True)


def test_the_run_ends_with_the_last_group_that_is_wanted() -> None:
    world = World(4, samples_per_prompt=2, keep_groups=2)
    world.end(0)
    world.end(2)
    world.end(3)
    assert world.kept == [2, 3]
    world.end(4)
    world.end(1)
    assert world.kept == [2, 3, 0, 1]
    assert [(ended.group, ended.dropped) for ended in world.groups] == [(1, 0), (0, 0), (2, 2), (3, 2)]
    world.end_cancelled()
    assert world.scheduler.done


def test_a_group_without_any_score_is_none_of_those_wanted() -> None:
    world = World(2, keep_groups=1)
    world.end(0, masked=True)
    assert not world.cancelled
    world.end(1)
    assert (world.kept, world.scheduler.done) == ([0, 1], True)


def test_at_the_deadline_everything_ends() -> None:
    world = World(3, samples_per_prompt=2, concurrency=4, retries=1, time_limit_s=10.0)
    world.end(0)
    world.end(1, masked=True, again=True)
    world.now = 0.2
    assert world.scheduler.wake_at == 0.5
    world.now = 10.0
    world.poll()
    assert world.cancelled == sorted(world.running)
    assert (world.kept, [ended.dropped for ended in world.groups]) == ([0], [1, 2, 2])
    world.end_cancelled()
    assert world.scheduler.done
    assert world.scheduler.wake_at is None


def test_bad_numbers_are_named() -> None:
    with pytest.raises(FieldErrors) as caught:
        Schedule(concurrency=0, extra_samples=-1, keep_groups=0, time_limit_s=float("nan"))
    assert [error.field for error in caught.value.errors] == [
        "concurrency",
        "extra_samples",
        "keep_groups",
        "time_limit_s",
    ]


@given(st.data())
def test_whatever_happens_complete_groups_are_whole_and_everything_ends(data: st.DataObject) -> None:
    draw = data.draw
    tasks, samples, extra = draw(st.integers(0, 5)), draw(st.integers(1, 3)), draw(st.integers(0, 2))
    keep = draw(st.none() | st.integers(1, 5))
    limit = draw(st.none() | st.floats(0.1, 20.0))
    world = World(
        tasks,
        retries=draw(st.integers(0, 2)),
        concurrency=draw(st.integers(1, 6)),
        samples_per_prompt=samples,
        extra_samples=extra,
        keep_groups=keep,
        time_limit_s=limit,
    )
    for _ in range(500):
        if world.scheduler.done:
            break
        world.now += draw(st.floats(0.0, 1.0))
        if not world.running:
            wake_at = world.scheduler.wake_at
            assert wake_at is not None, "nothing runs, and nothing is awaited"
            world.now = max(world.now, wake_at)
            world.poll()
            continue
        index = draw(st.sampled_from(world.running))
        if index in world.cancelled and draw(st.booleans()):
            world.end_cancelled()
        else:
            poll = len(world.running) == 1 or draw(st.booleans())
            world.end(index, masked=draw(st.booleans()), again=draw(st.booleans()), poll=poll)
    assert world.scheduler.done
    assert sorted(ended.group for ended in world.groups) == list(range(tasks))
    of_group = Counter(world.scheduler.group_of(index) for index in world.kept)
    begun = [index for index, attempt in world.started if attempt == 1]
    assert len(set(begun)) == len(begun) == len(world.kept) + sum(ended.dropped for ended in world.groups)
    if limit is None and keep is None:
        assert [of_group[group] for group in range(tasks)] == [samples] * tasks
    if keep is not None:
        assert set(of_group.values()) <= {samples}
        assert len({world.scheduler.group_of(index) for index in world.kept if index in world.scored}) <= keep
