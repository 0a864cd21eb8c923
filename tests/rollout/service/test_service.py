"""Trainers and a service over gRPC: what is submitted ends once, and what has ended is not lost."""

from __future__ import annotations

import asyncio
import contextlib
import random
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from executor_service import Cause
from fairbox.errors import FieldErrors
from fairbox.net.channels import open_channel
from fairbox.net.ports import free_port
from rollout.batch import RolloutBatch
from rollout.journal import JournalError
from rollout.loop import AgentLoop, Task, TrajectoryResult
from rollout.loop.limits import StopReason
from rollout.loop.state import RequestState
from rollout.service import (
    RolloutClient,
    RolloutServiceError,
    RolloutServiceUnavailable,
    RolloutTask,
    SubmissionRefused,
)
from rollout.service.engine import EngineControl
from rollout.service.service import RolloutService
from rollout.v1 import rollout_pb2 as pb
from rollout.v1 import rollout_pb2_grpc
from tests.rollout.service.serving import PROBLEMS, Served, Tier, essence

pytestmark = pytest.mark.timeout(120)
OPEN = pb.StreamTrajectoriesRequest(open=pb.StreamOpening())


def tasks(count: int, prefix: str = "t") -> list[RolloutTask]:
    return [RolloutTask(f"{prefix}{n}", problem=n % len(PROBLEMS), group=f"g{n // 2}") for n in range(count)]


async def taken(rollouts: RolloutClient, count: int, *, acknowledge: bool = True) -> dict[str, TrajectoryResult]:
    """So many trajectories of one stream, by id."""
    found: dict[str, TrajectoryResult] = {}
    async with asyncio.timeout(60), rollouts.stream() as stream:
        while len(found) < count:
            trajectory = await anext(stream)
            assert trajectory.id not in found
            found[trajectory.id] = trajectory.result
            if acknowledge:
                await stream.acknowledge(trajectory.id)
    return found


async def gone(served: Served) -> None:
    """Returns when nothing is here any more."""
    async with asyncio.timeout(20):
        while served.trajectories.counts():
            await asyncio.sleep(0.01)


async def test_each_trajectory_ends_once_and_is_exact(tier: Tier) -> None:
    async with tier.process() as served, served.client() as rollouts:
        assert (await rollouts.submit(tasks(20))).accepted == 20
        found = await taken(rollouts, 20)
        await gone(served)
        assert served.trajectories.totals.ended == served.trajectories.totals.acknowledged == 20
    assert set(found) == {f"t{n}" for n in range(20)}
    for number in range(20):
        result = found[f"t{number}"]
        assert result.uid == f"g{number // 2}"
        assert result.messages[0]["content"] == f"What is {number % 4}?"
        assert result.reward is not None
        assert len(result.trajectory.response_ids) == len(result.trajectory.logprobs)
    pytest.importorskip("torch")
    batch = RolloutBatch.from_results(list(found.values()), pad_token_id=0)
    assert batch.responses.shape[0] == 20


async def test_an_id_is_one_trajectory_for_ever(tier: Tier) -> None:
    async with tier.process() as served, served.client() as rollouts:
        assert (await rollouts.submit(tasks(3))).accepted == 3
        assert (await rollouts.submit(tasks(5))).accepted == 2
        with pytest.raises(FieldErrors, match=r"tasks\.id was submitted before, with another task: t1"):
            await rollouts.submit([RolloutTask("new", problem=0), RolloutTask("t1", problem=0)])
        await taken(rollouts, 5)
        await gone(served)
        assert (await rollouts.submit(tasks(5))).accepted == 0  # after it was acknowledged too
        async with served.client(tenant="other") as other:
            assert (await other.submit(tasks(5))).accepted == 5  # ids of others are theirs
    async with tier.process() as served, served.client() as rollouts:
        assert (await rollouts.submit(tasks(6))).accepted == 1  # and after a restart


async def test_what_is_not_acknowledged_comes_again(tier: Tier) -> None:
    async with tier.process() as served, served.client() as rollouts:
        await rollouts.submit(tasks(4))
        first = await taken(rollouts, 4, acknowledge=False)
        second = await taken(rollouts, 4, acknowledge=False)
    async with tier.process() as served, served.client() as rollouts:
        third = await taken(rollouts, 4)
        await gone(served)
    assert first == second == third
    assert list(first) == list(third)  # in the order in which they ended


@pytest.mark.parametrize("failing", [0.0, 0.05])
@pytest.mark.parametrize("seed", range(3))
async def test_a_service_that_ends_again_and_again_loses_and_repeats_nothing(
    tier: Tier, seed: int, failing: float
) -> None:
    """Each of its processes is cut off somewhere; one trainer goes on over all of them."""
    draws, address, count = random.Random(seed), f"127.0.0.1:{free_port()}", 60
    tier.delay_s, tier.failing = 0.03, failing
    found: dict[str, TrajectoryResult] = {}

    async def train() -> None:
        async with RolloutClient(address, unavailable_after=60.0) as rollouts, rollouts.stream() as stream:
            await rollouts.submit(tasks(count))
            async for trajectory in stream:
                assert trajectory.id not in found
                found[trajectory.id] = trajectory.result
                if draws.random() < 0.8:
                    await stream.acknowledge(trajectory.id)
                if len(found) == count:
                    return

    processes = 0
    async with asyncio.timeout(100):
        training = asyncio.create_task(train())
        while not training.done():
            processes += 1
            async with tier.process(address=address):
                await asyncio.wait([training], timeout=draws.uniform(0.2, 0.5))
        await training
    assert processes > 2
    if not failing:  # else attempts sample the same contexts
        # A turn that was under way when its process ended is sampled again, and nobody had seen it.
        assert sum(times - 1 for times in tier.sampled.values()) <= 4 * (processes - 1)
    undisturbed = Tier(tier.tokenizer, tier.chat, tier.folder / "undisturbed", failing=failing)
    async with undisturbed.process() as served, served.client() as rollouts:
        await rollouts.submit(tasks(count))
        wanted = await taken(rollouts, count)
    for name, result in found.items():
        assert essence(result) == essence(wanted[name])


@pytest.mark.parametrize("method", ["SubmitTrajectories", "StreamTrajectories"])
async def test_a_call_that_ends_with_the_service_is_made_again(
    tier: Tier, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the status that gRPC gives to calls which a server had not finished, now and then."""
    answer, calls = getattr(RolloutService, method), 0

    async def cut(service: RolloutService, request: Any, context: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 1:
            await context.abort(grpc.StatusCode.CANCELLED, "CANCELLED")
        return await answer(service, request, context)

    monkeypatch.setattr(RolloutService, method, cut)
    async with tier.process() as served, served.client() as rollouts:
        assert (await rollouts.submit(tasks(3))).accepted == 3
        assert len(await taken(rollouts, 3)) == 3
    assert calls >= 2


async def test_a_second_stream_takes_the_place_of_the_first(tier: Tier) -> None:
    async with tier.process() as served, served.client() as rollouts:
        await rollouts.submit(tasks(2))
        async with rollouts.stream() as first:
            await anext(first)
            async with rollouts.stream() as second:
                await anext(second)
                await anext(second)
                with pytest.raises(RolloutServiceError, match="another stream of this tenant took the place"):
                    [each async for each in first]
                first._streams[0]._call = None  # nor does it take its place back where it doesn't hear that
                with pytest.raises(RolloutServiceError, match="another stream of this tenant took the place"):
                    await anext(first)
                await rollouts.submit(tasks(3))
                assert (await anext(second)).id == "t2"


async def test_a_stream_is_not_flooded(tier: Tier) -> None:
    async with tier.process() as served, served.client() as rollouts:
        await rollouts.submit(tasks(10))
        async with rollouts.stream(max_unacknowledged=3) as stream:
            given = [await anext(stream) for _ in range(3)]
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.5):
                    await anext(stream)
        async with rollouts.stream(max_unacknowledged=3) as stream:
            again = [await anext(stream) for _ in range(3)]
            assert [each.id for each in again] == [each.id for each in given]
            await stream.acknowledge(again[0].id)
            assert (await anext(stream)).id not in {each.id for each in again}


async def test_a_wait_that_is_given_up_costs_nothing(tier: Tier) -> None:
    async with tier.process() as served, served.client() as rollouts, rollouts.stream() as stream:
        for name in ("a", "b"):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.3):
                    await anext(stream)
            await rollouts.submit([RolloutTask(name, problem=0)])
            async with asyncio.timeout(60):
                assert (await anext(stream)).id == name
            await stream.acknowledge(name)
        await gone_but_for_the_stream(served)


async def gone_but_for_the_stream(served: Served) -> None:
    async with asyncio.timeout(20):
        while served.trajectories.counts()[""].ended:
            await asyncio.sleep(0.01)


async def test_tenants_take_turns_and_see_their_own_alone(tier: Tier) -> None:
    tier.hold = asyncio.Event()
    async with tier.process(concurrency=2) as served, served.client() as one, served.client(tenant="b") as other:
        await one.submit(tasks(20))
        await other.submit(tasks(2))
        counts = served.trajectories.counts()
        assert (counts[""].running, counts[""].queued) == (2, 18)
        tier.hold.set()
        await taken(other, 2)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3), other.stream() as stream:
                await anext(stream)
        assert await other.cancel([f"t{n}" for n in range(20)]) == 0


async def test_a_tenant_has_so_much_room(tier: Tier) -> None:
    tier.hold = asyncio.Event()
    async with tier.process(max_trajectories=5) as served, served.client() as rollouts:
        await rollouts.submit(tasks(4))
        with pytest.raises(
            SubmissionRefused, match="4 trajectories are here, of at most 5: 2 more have no room"
        ) as info:
            await rollouts.submit(tasks(2, "more"))
        assert info.value.retry_after_s > 0
        async with served.client(tenant="b") as other:
            assert (await other.submit(tasks(5))).accepted == 5
        tier.hold.set()
        await taken(rollouts, 4)
        await asyncio.sleep(0.1)
        assert (await rollouts.submit(tasks(5, "more"))).accepted == 5


async def test_a_trainer_that_submits_again_needs_no_room(tier: Tier) -> None:
    tier.hold = asyncio.Event()
    async with tier.process(max_trajectories=5) as served, served.client() as rollouts:
        assert (await rollouts.submit(tasks(5))).accepted == 5
        assert (await rollouts.submit(tasks(5))).accepted == 0
        tier.hold.set()
        await taken(rollouts, 5)


async def test_a_trainer_that_does_not_wait_for_the_answer_has_submitted_all_the_same(tier: Tier) -> None:
    async with tier.process() as served, open_channel(served.address) as channel, served.client() as rollouts:
        stub: Any = rollout_pb2_grpc.RolloutServiceStub(channel)
        waits, goes_on = served.held_disk()
        request = pb.SubmitTrajectoriesRequest(tasks=[task.message() for task in tasks(3)])
        call = stub.SubmitTrajectories(request, timeout=100)
        assert await asyncio.to_thread(waits.wait, 60)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        goes_on.set()
        assert len(await taken(rollouts, 3)) == 3
        assert (await rollouts.submit(tasks(3))).accepted == 0


async def test_a_service_that_can_not_keep_anything_says_so_and_ends(tier: Tier) -> None:
    async with tier.process() as served, served.client() as rollouts, open_channel(served.address) as channel:
        stub: Any = rollout_pb2_grpc.RolloutServiceStub(channel)
        await rollouts.submit(tasks(2))
        stream = stub.StreamTrajectories(timeout=60)
        await stream.write(OPEN)
        await stream.read()
        served.store._failure = JournalError("database or disk is full")
        with pytest.raises(grpc.aio.AioRpcError, match="disk is full") as info:
            await stub.SubmitTrajectories(
                pb.SubmitTrajectoriesRequest(tasks=[task.message() for task in tasks(5)]), timeout=60
            )
        assert info.value.code() is grpc.StatusCode.UNAVAILABLE
        with contextlib.suppress(grpc.aio.AioRpcError):  # how it ended is told behind what came before
            while await stream.read() is not grpc.aio.EOF:
                pass
        assert (await stream.code(), await stream.details()) == (grpc.StatusCode.UNAVAILABLE, "this process ends")
        assert str(served.trajectories.failure) == "database or disk is full"
    async with tier.process() as served, served.client() as rollouts:
        assert len(await taken(rollouts, 2)) == 2  # what was accepted is there, and no more
        assert (await rollouts.submit(tasks(5))).accepted == 3


async def test_cancelled_ones_are_gone_wherever_they_were(tier: Tier) -> None:
    async with tier.process(concurrency=2) as served, served.client() as rollouts:
        await rollouts.submit(tasks(2, "ended"))
        async with asyncio.timeout(20):
            while served.trajectories.totals.ended < 2:
                await asyncio.sleep(0.01)
        tier.hold = asyncio.Event()
        await rollouts.submit(tasks(4, "waiting"))
        await asyncio.sleep(0.2)
        names = ["ended0", "ended1", *(f"waiting{n}" for n in range(4)), "unknown", "ended0"]
        assert await rollouts.cancel(names) == 6
        await gone(served)
        assert served.trajectories.totals.cancelled == 6
        assert await rollouts.cancel(names) == 0
    async with tier.process() as served:
        assert not served.trajectories.counts()


async def test_a_failed_one_is_played_again_and_masked_in_the_end(tier: Tier) -> None:
    tier.failing = 1.0
    async with tier.process(retries=1) as served, served.client() as rollouts:
        await rollouts.submit(tasks(3))
        found = await taken(rollouts, 3)
        assert served.trajectories.totals.masked == served.trajectories.totals.retried == 3
    for result in found.values():
        assert result.masked
        assert result.reward is None
        assert result.attempts == 2
        assert result.error == "the engine is away"


async def test_a_defect_in_one_trajectory_ends_no_other(tier: Tier, monkeypatch: pytest.MonkeyPatch) -> None:
    run = AgentLoop.run

    async def broken(loop: AgentLoop, task: Task, **options: Any) -> TrajectoryResult:
        if task.ground_truth == "3":
            raise ZeroDivisionError("division by zero")
        return await run(loop, task, **options)

    monkeypatch.setattr(AgentLoop, "run", broken)
    async with tier.process(retries=0) as served, served.client() as rollouts:
        await rollouts.submit(tasks(8))
        found = await taken(rollouts, 8)
        await gone(served)
    assert {name for name, result in found.items() if result.masked} == {"t3", "t7"}
    lost = found["t3"]
    assert (lost.state, lost.stop_reason, lost.cause) == (RequestState.FAILED, StopReason.INFRA, Cause.INFRA)
    assert (lost.error, lost.reward) == ("ZeroDivisionError: division by zero", None)


async def test_an_engine_with_weights_of_its_own_says_so(tier: Tier, tmp_path: Path) -> None:
    async with tier.process(takes_weights=False) as served, served.client() as rollouts:
        for moved in (rollouts.update_weights(str(tmp_path), version="1"), rollouts.pause_engine()):
            with pytest.raises(RolloutServiceError, match="FAILED_PRECONDITION: the engine takes no other weights"):
                await moved


async def test_nothing_is_sampled_in_a_pause(tier: Tier, tmp_path: Path) -> None:
    async with tier.process() as served, served.client() as rollouts:
        await rollouts.pause_engine(pause_s=3600)
        await rollouts.submit(tasks(4))
        await rollouts.update_weights(str(tmp_path), version="2")
        async with asyncio.timeout(20):
            while len(served.engine.requests) < 4:
                await asyncio.sleep(0.01)
        assert not tier.sampled
        assert 3500 < (await rollouts.status())[served.address].paused_s <= 3600
        await rollouts.resume_engine()
        assert (await rollouts.status())[served.address].paused_s == 0
        found = await taken(rollouts, 4)
        segments = [segment for each in found.values() for segment in each.trajectory.segments]
        assert {segment.weight_version for segment in segments} == {None, "2"}
        with pytest.raises(FieldErrors, match=r"pause_s is 4000\.0, must be from 0\.0 to 3600\.0 seconds"):
            await rollouts.pause_engine(pause_s=4000)


async def test_a_pause_ends_without_the_trainer_that_asked_for_it(tier: Tier) -> None:
    async with tier.process() as served, served.client() as rollouts:
        await rollouts.pause_engine(pause_s=100)
        await rollouts.pause_engine(pause_s=0.2)  # instead
        await rollouts.submit(tasks(2))
        assert len(await taken(rollouts, 2)) == 2
        assert (await rollouts.status())[served.address].paused_s == 0


async def test_weights_are_named_in_what_they_sampled(tier: Tier, tmp_path: Path) -> None:
    async with tier.process() as served, served.client() as rollouts:
        await rollouts.update_weights(str(tmp_path), version="step-7")
        assert (await rollouts.status())[served.address].weight_version == "step-7"
        await rollouts.submit(tasks(1))
        (result,) = (await taken(rollouts, 1)).values()
        with pytest.raises(FieldErrors, match="folder is 'here', must be an absolute path"):
            await rollouts.update_weights("here", version="8")
        with pytest.raises(FieldErrors, match="folder has 5001 characters, must have at most 4096"):
            await rollouts.update_weights("/" + "x" * 5000, version="8")
    assert {segment.weight_version for segment in result.trajectory.segments} == {None, "step-7"}


async def ended(served: Served, count: int) -> None:
    async with asyncio.timeout(60):
        while served.trajectories.totals.ended < count:
            await asyncio.sleep(0.01)


async def test_what_is_staler_than_its_trainer_takes_is_played_again(tier: Tier, tmp_path: Path) -> None:
    bounds = {"any": None, "two": 2, "one": 1, "none": 0}
    asked = [RolloutTask(name, problem=0, seed=1, max_staleness=most) for name, most in bounds.items()]
    async with tier.process() as served, served.client() as rollouts:
        await rollouts.submit(asked)
        await ended(served, 4)
        for version in ("1", "2"):
            await rollouts.update_weights(str(tmp_path), version=version)
    async with tier.process() as served, served.client() as rollouts:
        found = await taken(rollouts, 4)
        assert served.trajectories.totals.stale == 2
        await gone(served)
    sampled = {name: {part.weight_version for part in each.trajectory.segments} for name, each in found.items()}
    old, new = {None, "scripted"}, {None, "2"}
    assert sampled == {"any": old, "two": old, "one": new, "none": new}
    # But for who sampled it, it is what it was.
    assert len({each.trajectory.response_ids for each in found.values()}) == 1


async def test_what_is_always_too_stale_is_masked_in_the_end(tier: Tier, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EngineControl, "age", lambda *_: None)
    async with tier.process() as served, served.client() as rollouts:
        await rollouts.submit([RolloutTask("t", problem=0, max_staleness=1000)])
        (result,) = (await taken(rollouts, 1)).values()
        assert served.trajectories.totals.stale == 4
        with pytest.raises(FieldErrors, match=r"tasks\[0\].max_staleness is 1001, must be at most 1000"):
            await rollouts.submit([RolloutTask("u", problem=0, max_staleness=1001)])
    assert result.masked
    assert (result.cause, result.reward) == (Cause.INFRA, None)
    assert result.error == "it was too stale 4 times, the last time with the weights scripted"


async def test_another_problem_in_the_place_of_one_is_not_played(tier: Tier) -> None:
    """The data were changed while the service was away."""
    async with tier.process(concurrency=1) as served, served.client() as rollouts:
        tier.hold = asyncio.Event()
        await rollouts.submit([RolloutTask(f"p{n}", problem=n) for n in range(4)])
    tier.hold = None
    tier.problems[2] = tier.problems[0]
    del tier.problems[3]
    async with tier.process() as served, served.client() as rollouts:
        with pytest.raises(FieldErrors, match="was submitted before, with another task: p2"):
            await rollouts.submit([RolloutTask("p2", problem=2)])
        found = await taken(rollouts, 4)
    assert [found[f"p{n}"].masked for n in range(4)] == [False, False, True, True]
    for n in (2, 3):
        error = "the data have another problem in the place of this one than when it was submitted, or none"
        assert found[f"p{n}"].error == error


PROMPT = ({"role": "user", "content": "Say 3."},)


async def test_prompts_of_ones_own_are_scored_by_their_answer(tier: Tier) -> None:
    async with tier.process() as served, served.client() as rollouts:
        own = RolloutTask("own", messages=PROMPT, ground_truth="3", data_source="mine", seed=5)
        await rollouts.submit([own])
        result = (await taken(rollouts, 1))["own"]
    assert result.messages[0] == PROMPT[0]
    assert result.sampling.seed == 5
    assert result.reward is not None
    assert result.reward.value == float(result.final_text == "#### 3")


async def test_a_service_that_is_away_is_told(tier: Tier) -> None:
    async with RolloutClient(f"127.0.0.1:{free_port()}", unavailable_after=0.3) as rollouts:
        with pytest.raises(RolloutServiceUnavailable, match=r"no rollout service on .*: Connection refused"):
            await rollouts.status()
        with pytest.raises(RolloutServiceUnavailable):
            async with rollouts.stream() as stream:
                await anext(stream)


async def test_a_task_is_one_thing_or_the_other() -> None:
    with pytest.raises(FieldErrors, match="problem or problem_digest or messages must be set, and one of them alone"):
        RolloutTask("a")
    with pytest.raises(FieldErrors, match="problem or problem_digest or messages must be set, and one of them alone"):
        RolloutTask("a", problem=1, messages=PROMPT)
