"""Trajectories of a training run at a rollout service: each is asked for once, over lives of both."""

from __future__ import annotations

import asyncio
import collections
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from fairbox.errors import FieldErrors
from fairbox.net.ports import free_port
from rollout.engines import DiskWeights
from rollout.loop import Task, TrajectoryResult
from rollout.service import RolloutServiceError, RolloutServiceUnavailable, RolloutTask
from rollout.training.rollouts import service as module
from rollout.training.rollouts.lives import RunLives
from rollout.training.rollouts.service import ServiceLoop
from tests.rollout.service.conftest import tier
from tests.rollout.service.serving import PROBLEMS, Served, Tier, essence

__all__ = ["tier"]
pytestmark = pytest.mark.timeout(120)
FIRST = RunLives("run", (0,))
SECOND = RunLives("run", (0, 1))


@contextlib.asynccontextmanager
async def playing(served: Served, lives: RunLives = FIRST) -> AsyncIterator[ServiceLoop]:
    async with served.client() as client, ServiceLoop(client, lives, temperature=1.0, decode=str) as loop:
        await weights(loop, 0)
        yield loop


async def weights(loop: ServiceLoop, steps: int) -> None:
    life = loop.lives.life
    version = f"step-{steps}" if life == 1 else f"step-{steps}.{life}"
    await loop.engine.update_weights(DiskWeights(Path("/weights")), version=version)


async def played(loop: ServiceLoop, count: int, *, attempt: int = 1) -> list[TrajectoryResult]:
    runs = (loop.run(PROBLEMS[n % 4], index=n, seed=100 + n, attempt=attempt) for n in range(count))
    async with asyncio.timeout(60):
        return await asyncio.gather(*runs)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.01)


def at_the_service(served: Served) -> int:
    return sum(count.queued + count.running + count.ended for count in served.trajectories.counts().values())


def versions(results: list[TrajectoryResult]) -> set[str | None]:
    return {segment.weight_version for each in results for segment in each.trajectory.segments} - {None}


async def test_they_are_whole_and_those_that_were_asked_for(tier: Tier) -> None:
    async with tier.process() as served, playing(served) as loop:
        results = await played(loop, 12)
        assert [result.index for result in results] == [*range(12)]
        assert [result.uid for result in results] == [f"u{n % 4}" for n in range(12)]
        assert [result.sampling.seed for result in results] == [100 + n for n in range(12)]
        assert all(result.reward is not None and not result.masked for result in results)
        assert versions(results) == {"step-0"}
        assert set(tier.sampled.values()) == {1}
        assert at_the_service(served) == 12  # until a checkpoint has them
        await loop.drop(result.trajectory_id for result in results[:5])
        await until(lambda: at_the_service(served) == 7)
        await loop.finish()
        assert at_the_service(served) == 0


async def test_a_later_life_gets_what_an_earlier_one_had_asked_for(tier: Tier) -> None:
    async with tier.process() as served:
        async with playing(served) as loop:
            before = await played(loop, 8)
            loop.leave()
        async with playing(served, SECOND) as loop:
            after = await played(loop, 10)
            assert [essence(each) for each in after[:8]] == [essence(each) for each in before]
            assert versions(after) == {"step-0", "step-0.2"}
        assert set(tier.sampled.values()) == {1}


async def test_what_was_asked_for_and_had_not_ended_goes_on(tier: Tier) -> None:
    tier.hold = asyncio.Event()
    async with tier.process() as served:
        async with playing(served) as loop:
            asked = asyncio.ensure_future(played(loop, 8))
            await until(lambda: at_the_service(served) == 8)
            loop.leave()
            asked.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asked
        tier.hold.set()
        async with playing(served, SECOND) as loop:
            assert len(await played(loop, 8)) == 8
            await loop.finish()
            assert at_the_service(served) == 0
    assert set(tier.sampled.values()) == {1}


async def test_what_weights_sampled_that_were_lost_is_asked_for_anew(tier: Tier) -> None:
    async with tier.process() as served:
        async with playing(served) as loop:
            kept = await played(loop, 2)
            await weights(loop, 2)
            runs = [loop.run(PROBLEMS[n], index=n, seed=100 + n) for n in (2, 3)]
            assert versions(await asyncio.gather(*runs)) == {"step-2"}
            loop.leave()
        async with playing(served, SECOND) as loop:  # from the checkpoint of step 1
            await weights(loop, 1)
            results = await played(loop, 4)
        assert [essence(each) for each in results[:2]] == [essence(each) for each in kept]
        assert versions(results[2:]) == {"step-1.2"}


async def test_what_was_let_go_of_is_asked_for_anew(tier: Tier) -> None:
    async with tier.process() as served:
        async with playing(served) as loop:
            gone = await played(loop, 3)
            await loop.drop(result.trajectory_id for result in gone)
            await until(lambda: at_the_service(served) == 0)
            again = await played(loop, 3)  # a step that is refused is played again
            assert versions(again) == {"step-0"}
            assert {each.trajectory_id for each in again}.isdisjoint(each.trajectory_id for each in gone)
            loop.leave()
        async with playing(served, SECOND) as loop:
            assert versions(await played(loop, 3)) == {"step-0.2"}


async def test_a_service_that_ends_and_comes_again_loses_nothing(tier: Tier) -> None:
    address = f"127.0.0.1:{free_port()}"
    tier.hold = asyncio.Event()
    async with contextlib.AsyncExitStack() as stack:
        async with tier.process(address=address) as served:
            loop = await stack.enter_async_context(playing(served))
            asked = asyncio.ensure_future(played(loop, 12))
            # All that are played wait for their scores: a turn that is cut off is sampled again.
            await until(lambda: at_the_service(served) == 12 and tier.held == 4)
        tier.hold.set()
        async with tier.process(address=address) as served:
            assert served.engine.weight_version == "step-0"  # not those that it was started with
            results = await asked
            assert versions(results) == {"step-0"}
            await stack.aclose()
    assert set(tier.sampled.values()) == {1}


@pytest.mark.parametrize("room", [100, 1])
async def test_a_service_that_lost_its_disk_is_asked_again(
    tier: Tier, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    """Room that it has not is waited for."""
    monkeypatch.setattr(module, "_ASK_EVERY_S", 0.2)
    monkeypatch.setattr("rollout.service.service._FULL_RETRY_S", 0.05)
    address = f"127.0.0.1:{free_port()}"
    tier.hold = asyncio.Event()
    async with contextlib.AsyncExitStack() as stack:
        async with tier.process(address=address) as served:
            loop = await stack.enter_async_context(playing(served))
            asked = asyncio.ensure_future(played(loop, 3))
            await until(lambda: at_the_service(served) == 3)
            await loop._cancel(f"run..{100:x}.1")  # and somebody cancelled one
        tier.hold.set()
        for path in tier.folder.iterdir():
            path.unlink()
        async with tier.process(address=address, max_trajectories=room):
            assert len(await asked) == 3
            await stack.aclose()


async def test_what_is_not_wanted_any_more_is_cancelled(tier: Tier) -> None:
    tier.hold = asyncio.Event()
    async with tier.process() as served, playing(served) as loop:
        asked = asyncio.ensure_future(loop.run(PROBLEMS[0], index=0, seed=1))
        await until(lambda: at_the_service(served) == 1)
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        assert at_the_service(served) == 0
        tier.hold.set()
        assert (await loop.run(PROBLEMS[0], index=0, seed=1)).reward is not None  # though that one is gone


async def test_what_fails_is_not_kept(tier: Tier) -> None:
    tier.failing = 1.0
    async with tier.process(retries=0) as served, playing(served) as loop:
        assert all(result.masked for result in await played(loop, 3))
        await until(lambda: at_the_service(served) == 0)
        tier.failing = 0.0
        assert not any(result.masked for result in await played(loop, 3, attempt=2))


@pytest.mark.parametrize("bound", ["the service's", "the run's"])
async def test_room_is_made_for_what_is_to_come(tier: Tier, monkeypatch: pytest.MonkeyPatch, bound: str) -> None:
    if bound == "the run's":
        monkeypatch.setattr(module, "_MOST_HELD", 4)
    monkeypatch.setattr("rollout.service.service._FULL_RETRY_S", 0.05)
    room = 10 if bound == "the service's" else 1000
    async with tier.process(max_trajectories=room) as served, playing(served) as loop:
        for begin in range(0, 40, 8):
            runs = [loop.run(PROBLEMS[0], index=n, seed=n) for n in range(begin, begin + 8)]
            async with asyncio.timeout(60):
                await asyncio.gather(*runs)
        assert at_the_service(served) <= 12
    assert set(tier.sampled.values()) == {1}


async def test_no_more_is_let_go_of_than_has_to_be(tier: Tier, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_HELD", 8)
    async with tier.process() as served, playing(served) as loop:
        await played(loop, 6)
        assert at_the_service(served) == 6
        await played(loop, 10, attempt=2)
        await until(lambda: at_the_service(served) == 8)


async def test_a_service_without_room_is_said(tier: Tier, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_ROOM_S", 0.2)
    monkeypatch.setattr("rollout.service.service._FULL_RETRY_S", 0.05)
    async with tier.process(max_trajectories=1) as served, playing(served) as loop, served.client() as other:
        await other.submit([RolloutTask("another", problem=0)])
        with pytest.raises(RolloutServiceError, match=r"had no room for 0\.2 s: 1 trajectories are here, of at most 1"):
            await loop.run(PROBLEMS[0], index=0, seed=1)


async def test_what_is_left_at_a_service_that_is_away_is_warned_of(
    tier: Tier, caplog: pytest.LogCaptureFixture
) -> None:
    async with contextlib.AsyncExitStack() as stack:
        async with tier.process() as served:
            client = await stack.enter_async_context(served.client(unavailable_after=0.3))
            loop = await stack.enter_async_context(ServiceLoop(client, FIRST, temperature=1.0, decode=str))
            await weights(loop, 0)
            await played(loop, 2)
        await loop.finish()
    assert "2 trajectories of this run are left at the rollout service, which is away" in caplog.text


async def test_evaluations_have_a_temperature_of_their_own(tier: Tier) -> None:
    async with tier.process() as served, playing(served) as loop:
        greedy = await loop.at(0.0).run(PROBLEMS[0], index=0, seed=7)
        warm = await loop.run(PROBLEMS[0], index=0, seed=7)
        assert (greedy.sampling.temperature, warm.sampling.temperature) == (0.0, 1.0)


async def test_trajectories_of_others_stay_where_they_are(tier: Tier, caplog: pytest.LogCaptureFixture) -> None:
    async with tier.process() as served, playing(served) as loop, served.client() as other:
        await other.submit([RolloutTask(f"another.{n}", problem=0) for n in range(3)])
        assert len(await played(loop, 3)) == 3
        await until(lambda: at_the_service(served) == 6)
        await until(lambda: "trajectories of others" in caplog.text)
        await loop.finish()
        assert at_the_service(served) == 3
    assert caplog.text.count("trajectories of others") == 1


async def test_a_service_that_stays_away_is_said(tier: Tier) -> None:
    async with tier.process() as served:
        client = served.client(unavailable_after=0.5)
        await client.__aenter__()
        loop = await ServiceLoop(client, FIRST, temperature=1.0, decode=str).__aenter__()
        tier.hold = asyncio.Event()
        asked = asyncio.ensure_future(loop.run(PROBLEMS[0], index=0, seed=1))
        await until(lambda: at_the_service(served) == 1)
    with pytest.raises(RolloutServiceUnavailable, match=r"no rollout service on 127\.0\.0\.1"):
        await asked
    with pytest.raises(RolloutServiceUnavailable, match=r"no rollout service on 127\.0\.0\.1"):
        await loop.run(PROBLEMS[0], index=1, seed=2)
    await loop.__aexit__(None, None, None)
    await client.__aexit__(None, None, None)


async def test_a_problem_that_the_service_does_not_have_is_named(tier: Tier) -> None:
    other = Task("u", ({"role": "user", "content": "What else?"},), "4", "test", "here")
    async with tier.process() as served, playing(served) as loop:
        with pytest.raises(FieldErrors, match=r"tasks\[0\].problem_digest is [0-9a-f]{8}..., which no problem of this"):
            await loop.run(other, index=0, seed=1)


async def test_weights_are_looked_at(tier: Tier, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LOOK_EVERY_S", 0.05)
    async with tier.process() as served, playing(served) as loop:
        assert loop.engine.weight_version == "step-0"
        await served.engine.update_weights(DiskWeights(Path("/weights")), version="another")
        await until(lambda: loop.engine.weight_version == "another")
        counted = collections.Counter(type(each).__name__ for each in [*loop.metrics()])
        assert not counted  # the service has its own
