"""Whatever is sent to the service, it answers as it should, and an honest trainer has its trajectories."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf.message import Message

from fairbox.net.channels import open_channel
from rollout.v1 import rollout_pb2 as pb
from tests.hostile.generated import Generator
from tests.hostile.services import OURS
from tests.rollout.service.serving import Tier
from tests.rollout.service.test_refusals import asked
from tests.rollout.service.test_service import taken, tasks

SERVICE = pb.DESCRIPTOR.services_by_name["RolloutService"]
GOOD = {
    "SubmitTrajectories": pb.SubmitTrajectoriesRequest(tasks=[pb.TrajectoryTask(id="a", problem=1)]),
    "StreamTrajectories": pb.StreamTrajectoriesRequest(open=pb.StreamOpening()),
    "CancelTrajectories": pb.CancelTrajectoriesRequest(ids=["a"]),
    "UpdateWeights": pb.UpdateWeightsRequest(folder="/", version="1"),
    "PauseEngine": pb.PauseEngineRequest(pause_s=0.1),
    "ResumeEngine": pb.ResumeEngineRequest(),
    "GetStatus": pb.GetStatusRequest(),
}

pytestmark = pytest.mark.timeout(200)


async def status_of(channel: grpc.aio.Channel, name: str, sent: Sequence[bytes]) -> str:
    """Status of a call with these requests."""
    method = SERVICE.methods_by_name[name]
    path = f"/{SERVICE.full_name}/{name}"
    try:
        if not method.client_streaming:
            unary: Any = channel.unary_unary(path)
            await unary(sent[0], timeout=20)
            return "OK"

        async def requests() -> AsyncIterator[bytes]:
            for each in sent:
                yield each

        stream: Any = channel.stream_stream(path)
        async for _ in stream(requests(), timeout=20):
            pass
    except grpc.aio.AioRpcError as error:
        # grpcio's words for a request that it could not send, because the call had been answered.
        sent_late = (error.details() or "").startswith("Internal error from Core")
        return "ANSWERED BEFORE" if sent_late else error.code().name
    return "OK"


def generated(number: int) -> tuple[str, list[bytes]]:
    """A call that nobody means."""
    chance, generator = random.Random(number), Generator(str(number), {"paths": {}}, ["a", "t1"])
    name = chance.choice([*GOOD])
    kind = SERVICE.methods_by_name[name].input_type
    count = chance.randint(0, 3) if SERVICE.methods_by_name[name].client_streaming else 1
    sent: list[Any] = [generator._message(kind) for _ in range(count)]
    if chance.random() < 0.5:
        good: Message = type(GOOD[name]).FromString(GOOD[name].SerializeToString())
        for _ in range(chance.randint(0, 2)):
            if kind.fields:
                generator._change(good)
        sent = [good, *sent[1:]]
    data = [each.SerializeToString() for each in sent]
    return name, [generator._spoilt(each) for each in data] if chance.random() < 0.3 else data


async def test_calls_that_nobody_means_harm_nobody(tier: Tier, caplog: pytest.LogCaptureFixture) -> None:
    statuses: Counter[str] = Counter()
    async with tier.process() as served, served.client(tenant="honest") as honest:
        await honest.submit(tasks(8))
        async with open_channel(served.address) as channel:
            for begin in range(0, 800, 8):
                calls = [status_of(channel, *generated(number)) for number in range(begin, begin + 8)]
                statuses.update(await asyncio.gather(*calls))
        await honest.resume_engine()  # which only operators may pause where there are tokens
        assert len(await taken(honest, 8)) == 8
    assert not statuses.keys() & set(OURS), statuses
    assert statuses["OK"] > 100
    assert statuses["INVALID_ARGUMENT"] > 100
    assert "Traceback" not in caplog.text


LARGE = {
    "parts": pb.SubmitTrajectoriesRequest(
        tasks=[pb.TrajectoryTask(id="a", prompt=pb.Prompt(messages=[pb.ChatMessage()] * 300_000))]
    ),
    "text": pb.SubmitTrajectoriesRequest(tasks=[pb.TrajectoryTask(id="a", prompt=asked("x" * (8 << 20)))]),
    "ids": pb.CancelTrajectoriesRequest(ids=["a" * 100] * 150_000),
    "tasks": pb.SubmitTrajectoriesRequest(tasks=[pb.TrajectoryTask(id="a", problem=1)] * 60_000),
}


@pytest.mark.parametrize("name", LARGE)
async def test_what_is_too_large_is_refused(tier: Tier, name: str) -> None:
    message = LARGE[name]
    called = "CancelTrajectories" if name == "ids" else "SubmitTrajectories"
    async with tier.process() as served, open_channel(served.address) as channel:
        assert await status_of(channel, called, [message.SerializeToString()]) == "INVALID_ARGUMENT"
        assert not served.trajectories.counts()
