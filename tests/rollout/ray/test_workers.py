"""The table of workers: who takes a trajectory, and what a loss costs."""

from __future__ import annotations

from rollout.ray.workers import WorkerTable


def table(count: int = 2, *, capacity: int = 2, restarts: int = 2) -> WorkerTable:
    made = WorkerTable(count, capacity=capacity, restarts=restarts, now=0.0)
    for number, life in made.due(0.0):
        made.ready(number, life)
    return made


def test_a_trajectory_goes_to_the_worker_that_runs_the_fewest() -> None:
    workers = table()
    assert [workers.take() for _ in range(5)] == [(0, 1), (1, 1), (0, 1), (1, 1), None]
    workers.give_back(1, 1)
    assert workers.take() == (1, 1)
    assert workers.statistics().running == 4


def test_nothing_goes_to_a_worker_that_is_not_ready() -> None:
    workers = WorkerTable(1, capacity=1, restarts=0, now=5.0)
    assert (workers.due(4.9), workers.wake_at, workers.take()) == ([], 5.0, None)
    assert workers.due(5.0) == [(0, 1)]
    assert workers.take() is None
    workers.ready(0, 1)
    assert workers.take() == (0, 1)


def test_a_lost_worker_is_started_again_later_each_time() -> None:
    workers = table(1)
    assert workers.lost(0, 1, "killed", now=10.0)
    assert workers.wake_at == 11.0
    assert workers.due(11.0) == [(0, 2)]
    assert workers.lost(0, 2, "killed", now=12.0)
    assert workers.wake_at == 14.0
    assert workers.due(14.0) == [(0, 3)]
    assert workers.lost(0, 3, "no memory", now=15.0)
    assert workers.hopeless
    assert (workers.why, workers.statistics().lost, workers.statistics().given_up) == ("no memory", 3, 1)


def test_a_worker_that_was_ready_pauses_briefly_again() -> None:
    workers = table(1, restarts=9)
    workers.lost(0, 1, "", now=0.0)
    workers.due(1.0)
    workers.lost(0, 2, "", now=1.0)
    workers.due(3.0)
    workers.ready(0, 3)
    workers.lost(0, 3, "", now=50.0)
    assert workers.wake_at == 51.0


def test_what_is_heard_of_an_earlier_life_changes_nothing() -> None:
    workers = table(1)
    assert workers.take() == (0, 1)
    assert workers.lost(0, 1, "killed", now=0.0)
    assert not workers.lost(0, 1, "killed", now=0.0)
    assert workers.due(1.0) == [(0, 2)]
    workers.ready(0, 1)
    assert workers.take() is None
    workers.ready(0, 2)
    assert workers.take() == (0, 2)
    workers.give_back(0, 1)
    assert workers.statistics().running == 1
