"""Replicas of a service behind one client: where trajectories go, ends of any of them, and disks that are lost."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from fairbox.errors import FieldErrors
from fairbox.net.ports import free_ports
from rollout.loop import TrajectoryResult
from rollout.service import RolloutClient, RolloutServiceUnavailable, RolloutTask, SubmissionRefused
from rollout.service.replica import batch
from rollout.service.requests import MAX_TASKS
from rollout.v1 import rollout_pb2 as pb
from tests.rollout.service.serving import PROBLEMS, Served, Tier, essence

pytestmark = pytest.mark.timeout(120)


def tasks(count: int) -> list[RolloutTask]:
    """In groups of two, with seeds, so that it is the same trajectories wherever they are played."""
    return [RolloutTask(f"t{n}", problem=n % len(PROBLEMS), group=f"g{n // 2}", seed=n) for n in range(count)]


@pytest.fixture
def tiers(tier: Tier) -> list[Tier]:
    made = [Tier(tier.tokenizer, tier.chat, tier.folder / str(number)) for number in range(3)]
    for each in made:
        each.folder.mkdir()
    return made


@contextlib.asynccontextmanager
async def all_of(tiers: list[Tier], **options: int) -> AsyncIterator[tuple[list[Served], RolloutClient]]:
    async with contextlib.AsyncExitStack() as stack:
        served = [await stack.enter_async_context(tier.process(**options)) for tier in tiers]  # type: ignore[arg-type]
        target = ",".join(each.address for each in served)
        yield served, await stack.enter_async_context(RolloutClient(target, unavailable_after=20.0))


async def drawn(rollouts: RolloutClient, count: int) -> dict[str, TrajectoryResult]:
    found: dict[str, TrajectoryResult] = {}
    async with asyncio.timeout(60), rollouts.stream(max_unacknowledged=4) as stream:
        while len(found) < count:
            trajectory = await anext(stream)
            assert trajectory.id not in found
            found[trajectory.id] = trajectory.result
            await stream.acknowledge(trajectory.id)
    return found


async def test_a_group_has_one_replica_and_all_have_a_share(tiers: list[Tier]) -> None:
    async with all_of(tiers) as (served, rollouts):
        assert (await rollouts.submit(tasks(60))).accepted == 60
        assert (await rollouts.submit(tasks(60))).accepted == 0
        found = await drawn(rollouts, 60)
        assert (await rollouts.submit(tasks(60))).gone
        ended = [each.trajectories.totals.ended for each in served]
        async with asyncio.timeout(20):
            while any(each.trajectories.counts() for each in served):
                await asyncio.sleep(0.01)
    assert set(found) == {f"t{n}" for n in range(60)}
    assert sum(ended) == 60
    assert all(count >= 6 and count % 2 == 0 for count in ended)


@pytest.mark.parametrize("seed", range(2))
async def test_replicas_that_end_again_and_again_lose_and_repeat_nothing(tiers: list[Tier], seed: int) -> None:
    """Each by itself, and each at its address."""
    draws, count, done = random.Random(seed), 60, asyncio.Event()
    addresses = [f"127.0.0.1:{port}" for port in free_ports(len(tiers))]
    processes = 0

    async def kept_alive(tier: Tier, address: str) -> None:
        nonlocal processes
        tier.delay_s = 0.03
        while not done.is_set():
            processes += 1
            async with tier.process(address=address):
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(draws.uniform(0.2, 0.6)):
                        await done.wait()

    async def train() -> dict[str, TrajectoryResult]:
        found: dict[str, TrajectoryResult] = {}
        try:
            async with RolloutClient(",".join(addresses)) as rollouts, rollouts.stream() as stream:
                await rollouts.submit(tasks(count))
                async for trajectory in stream:
                    assert trajectory.id not in found
                    found[trajectory.id] = trajectory.result
                    if draws.random() < 0.8:
                        await stream.acknowledge(trajectory.id)
                    if len(found) == count:
                        assert rollouts.lost == 0
                        break
        finally:
            done.set()
        return found

    async with asyncio.timeout(100), asyncio.TaskGroup() as group:
        training = group.create_task(train())
        for tier, address in zip(tiers, addresses, strict=True):
            group.create_task(kept_alive(tier, address))
    found = training.result()
    assert processes > len(tiers)
    undisturbed = Tier(tiers[0].tokenizer, tiers[0].chat, tiers[0].folder / "undisturbed")
    async with undisturbed.process() as served, served.client() as rollouts:
        await rollouts.submit(tasks(count))
        wanted = await drawn(rollouts, count)
    assert {name: essence(each) for name, each in found.items()} == {
        name: essence(each) for name, each in wanted.items()
    }


async def test_what_a_lost_disk_had_is_played_again(tiers: list[Tier], caplog: pytest.LogCaptureFixture) -> None:
    """Without the trainer's doing, and said; those of the other replicas are not."""
    caplog.set_level(logging.WARNING, "fairbox.rollout")
    addresses = [f"127.0.0.1:{port}" for port in free_ports(2)]
    for tier in tiers:
        tier.hold = asyncio.Event()
    async with (
        tiers[0].process(address=addresses[0]),
        RolloutClient(",".join(addresses), unavailable_after=20.0) as rollouts,
        rollouts.stream() as stream,
    ):
        async with tiers[1].process(address=addresses[1]) as lost:
            await rollouts.submit(tasks(20))
            waiting = asyncio.ensure_future(anext(stream))
            await asyncio.sleep(0.2)
            (counts,) = lost.trajectories.counts().values()
            share = counts.queued + counts.running
        shutil.rmtree(tiers[1].folder)
        tiers[1].folder.mkdir()
        tiers[1].hold = None
        async with asyncio.timeout(60), tiers[1].process(address=addresses[1]) as again:
            found = {(await waiting).id}
            while len(found) < share:
                found.add((await anext(stream)).id)
            assert rollouts.lost == again.trajectories.totals.ended == share
    assert 0 < share < 20
    assert f"the rollout service on {addresses[1]} had lost {share} trajectories, which it plays again" in caplog.text


async def test_one_that_two_replicas_have_is_given_once(tiers: list[Tier]) -> None:
    """As after a change of their number, when it was submitted again."""
    async with all_of(tiers[:2]) as (served, rollouts):
        for each in served:
            async with each.client() as alone:
                assert (await alone.submit(tasks(10))).accepted == 10
        async with asyncio.timeout(60), rollouts.stream() as stream:
            found = [await anext(stream) for _ in range(10)]
            assert {each.id for each in found} == {f"t{n}" for n in range(10)}
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(1):
                    await anext(stream)
            await stream.acknowledge(*(each.id for each in found))
        assert not any(each.trajectories.counts() for each in served)


async def test_calls_are_for_all_replicas(tiers: list[Tier], tmp_path: Path) -> None:
    async with all_of(tiers) as (served, rollouts):
        await rollouts.update_weights(str(tmp_path), version="7")
        await rollouts.pause_engine()
        status = await rollouts.status()
        assert [*status] == [each.address for each in served]
        assert {each.weight_version for each in status.values()} == {"7"}
        assert all(each.paused_s > 0 for each in status.values())
        await rollouts.submit(tasks(20))
        assert await rollouts.cancel([f"t{n}" for n in range(20)]) == 20
        await rollouts.resume_engine()


async def test_room_is_that_of_each(tiers: list[Tier]) -> None:
    for tier in tiers:
        tier.hold = asyncio.Event()
    async with all_of(tiers, max_trajectories=4) as (served, rollouts):
        with pytest.raises(SubmissionRefused, match="0 trajectories are here, of at most 4: "):
            await rollouts.submit(tasks(20))
        for each in served:
            assert all(counts.queued + counts.running <= 4 for counts in each.trajectories.counts().values())


async def test_one_that_is_away_is_named(tiers: list[Tier]) -> None:
    (port,) = free_ports(1)
    async with tiers[0].process() as served:
        target = f"{served.address}, 127.0.0.1:{port}"
        async with RolloutClient(target, unavailable_after=0.3) as rollouts:
            with pytest.raises(RolloutServiceUnavailable, match=f"no rollout service on 127.0.0.1:{port}: "):
                await rollouts.submit(tasks(20))
            with pytest.raises(RolloutServiceUnavailable, match=f"no rollout service on 127.0.0.1:{port}: "):
                async with rollouts.stream() as stream:
                    [each async for each in stream]


def test_what_is_submitted_again_fits_into_requests() -> None:
    small = [pb.TrajectoryTask(id=str(n), problem=0) for n in range(2_500)]
    large = [pb.TrajectoryTask(id=str(n), ground_truth="x" * (1 << 20)) for n in range(70)]
    for tasks, sizes in ((small, [1000, 1000, 500]), (large, [31, 31, 8]), ([], [])):
        batches, left = [], tasks
        while left:
            batches.append(batch(left, MAX_TASKS))
            left = left[len(batches[-1]) :]
        assert [task for each in batches for task in each] == tasks
        assert [len(each) for each in batches] == sizes


@pytest.mark.parametrize("target", ["", "a:1,", "a:1, a:1"])
def test_addresses_are_said_once(target: str) -> None:
    with pytest.raises(FieldErrors, match=r"target is .*, must be HOST:PORT, several with commas, each once"):
        RolloutClient(target)
