"""Requests that the service refuses, and its words for it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from fairbox.errors import FieldErrors
from fairbox.net.channels import open_channel
from fairbox.security import ClientSecurity, tokens
from fairbox.security.server import ServerSecuritySettings
from fairbox.security.tls import FileSet
from rollout.config import EngineSettings
from rollout.service import RolloutClient, RolloutServiceError, RolloutTask, service
from rollout.service.app import check_temperature
from rollout.service.config import ServiceConfig
from rollout.v1 import rollout_pb2 as pb
from rollout.v1 import rollout_pb2_grpc
from tests.rollout.service.serving import Tier
from tests.rollout.service.test_service import OPEN, tasks

pytestmark = pytest.mark.timeout(120)


def asked(content: str) -> pb.Prompt:
    return pb.Prompt(messages=[pb.ChatMessage(role="user", content=content)])


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        ([], r"tasks has 0 entries, must have 1 to 1000"),
        ([pb.TrajectoryTask(problem=0)], r"tasks\[0\]\.id is '', must be 1 to 128 characters of visible ASCII"),
        ([pb.TrajectoryTask(id="a")], r"tasks\[0\] has neither problem, problem_digest nor prompt"),
        ([pb.TrajectoryTask(id="a", problem=4)], r"tasks\[0\]\.problem is 4, must be below 4"),
        (
            [pb.TrajectoryTask(id="a", problem_digest=b"1234")],
            r"problem_digest is 31323334\.\.\., which no problem of this",
        ),
        (
            [pb.TrajectoryTask(id="a", problem=1, temperature=11)],
            r"tasks\[0\]\.temperature is 11, must be from 0 to 10",
        ),
        ([pb.TrajectoryTask(id="a", problem=1, ground_truth="3")], r"tasks\[0\]\.ground_truth is set beside a problem"),
        ([pb.TrajectoryTask(id="a", problem=1)] * 2, r"tasks\[1\]\.id is 'a', which tasks\[0\] has too"),
        ([pb.TrajectoryTask(id="a", prompt=pb.Prompt())], r"prompt\.messages is empty"),
        (
            [pb.TrajectoryTask(id="a", prompt=pb.Prompt(messages=[pb.ChatMessage(role="me")]))],
            r"prompt\.messages\[0\]\.role is 'me', must be one of system, user, assistant, tool",
        ),
        (
            [pb.TrajectoryTask(id="a", prompt=asked("a b " * 2000))],
            r"tasks\[0\]\.prompt has \d+ tokens, which leaves none of 2000 to answer",
        ),
        ([pb.TrajectoryTask(id="a", problem=1, seed=2**63)], r"tasks\[0\]\.seed is 9223372036854775808"),
    ],
)
async def test_what_can_not_be_played_is_refused(tier: Tier, sent: Sequence[pb.TrajectoryTask], said: str) -> None:
    async with tier.process() as served, open_channel(served.address) as channel:
        stub: Any = rollout_pb2_grpc.RolloutServiceStub(channel)
        with pytest.raises(grpc.aio.AioRpcError, match=said) as info:
            await stub.SubmitTrajectories(pb.SubmitTrajectoriesRequest(tasks=sent), timeout=20)
        assert info.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert not served.trajectories.counts()


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        ([pb.StreamTrajectoriesRequest()], "open is not set in the first request"),
        ([OPEN, OPEN], "acknowledge is not set in a request behind the first"),
        (
            [pb.StreamTrajectoriesRequest(open=pb.StreamOpening(max_unacknowledged=10**6))],
            "open.max_unacknowledged is 1000000, must be from 1 to 10000",
        ),
        (
            [
                OPEN,
                pb.StreamTrajectoriesRequest(acknowledge=pb.Acknowledgement(ids=["a"] * 10_001)),
            ],
            "ids has 10001 entries",
        ),
    ],
)
async def test_a_stream_says_what_is_wrong_with_it(
    tier: Tier, sent: Sequence[pb.StreamTrajectoriesRequest], said: str
) -> None:
    async def requests() -> AsyncIterator[pb.StreamTrajectoriesRequest]:
        for each in sent:
            yield each
        await asyncio.sleep(30)

    async with tier.process() as served, open_channel(served.address) as channel:
        stub: Any = rollout_pb2_grpc.RolloutServiceStub(channel)
        with pytest.raises(grpc.aio.AioRpcError, match=said) as info:
            async for _ in stub.StreamTrajectories(requests(), timeout=20):
                pass
        assert info.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_stream_that_says_nothing_is_closed(tier: Tier, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "_OPEN_WITHIN_S", 0.2)
    async with tier.process() as served, open_channel(served.address) as channel:
        stub: Any = rollout_pb2_grpc.RolloutServiceStub(channel)
        stream = stub.StreamTrajectories(timeout=60)
        assert await stream.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert await stream.details() == "no open within 0 s"


async def test_a_temperature_without_exact_logprobs_is_refused(tier: Tier) -> None:
    engine = EngineSettings(kind="vllm", urls=["http://127.0.0.1:1"])
    tier.check_temperature = partial(check_temperature, ServiceConfig(engine=engine))
    async with tier.process() as served, served.client() as rollouts:
        assert (await rollouts.submit([RolloutTask("a", problem=0, temperature=1.0)])).accepted == 1
        with pytest.raises(FieldErrors, match=r"tasks\[0\]\.temperature is 0\.7, must be 0 or 1"):
            await rollouts.submit([RolloutTask("b", problem=0, temperature=0.7)])


async def test_a_stream_ends_with_its_token(tier: Tier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where its client says nothing."""
    monkeypatch.setattr(service, "_LOOK_EVERY_S", 0.05)
    monkeypatch.setattr(tokens, "FileSet", partial(FileSet, every=0.0))
    path = tmp_path / "clients"
    path.write_text("a:token-of-tenant-a\nb:token-of-tenant-b\n")
    security = ServerSecuritySettings(client_token_file=str(path))
    metadata = (("authorization", "Bearer token-of-tenant-a"),)
    async with tier.process(security=security) as served, open_channel(served.address) as channel:
        stub: Any = rollout_pb2_grpc.RolloutServiceStub(channel)
        stream = stub.StreamTrajectories(timeout=60, metadata=metadata)
        await stream.write(OPEN)
        await stream.initial_metadata()
        path.write_text("b:token-of-tenant-b\n")
        assert await stream.code() is grpc.StatusCode.UNAUTHENTICATED
        assert await stream.details() == "the token of this stream is not good any more"


async def test_tokens_decide_who_may_do_what(tier: Tier, tmp_path: Path) -> None:
    (tmp_path / "clients").write_text("a:token-of-tenant-a\ntoken-of-any-tenant\n")
    (tmp_path / "admins").write_text("token-of-an-operator\n")
    security = ServerSecuritySettings(
        client_token_file=str(tmp_path / "clients"), admin_token_file=str(tmp_path / "admins")
    )

    def secured(token: str) -> ClientSecurity:
        path = tmp_path / f"{token}.txt"
        path.write_text(token)
        return ClientSecurity(token_file=str(path))

    async with tier.process(security=security) as served, contextlib.AsyncExitStack() as stack:

        async def client(token: str, tenant: str = "") -> RolloutClient:
            return await stack.enter_async_context(served.client(tenant=tenant, security=secured(token)))

        own, anyone = await client("token-of-tenant-a"), await client("token-of-any-tenant", "b")
        operator, wrong = await client("token-of-an-operator"), await client("token-of-tenant-a", "b")
        await own.submit(tasks(1))
        await anyone.submit(tasks(1))
        with pytest.raises(RolloutServiceError, match="PERMISSION_DENIED: tenant is 'b', must be empty or 'a'"):
            await wrong.submit(tasks(1))
        with pytest.raises(RolloutServiceError, match="PERMISSION_DENIED: this call needs a token of the role admin"):
            await own.update_weights(str(tmp_path), version="1")
        for moved in (own.pause_engine, own.resume_engine):
            with pytest.raises(RolloutServiceError, match="this call needs a token of the role admin"):
                await moved()
        with pytest.raises(RolloutServiceError, match="PERMISSION_DENIED: this call needs a token of the role client"):
            await operator.submit(tasks(1))
        await operator.update_weights(str(tmp_path), version="1")
        assert [each.tenant for each in (await own.status())[served.address].tenants] == ["a"]
        assert [each.tenant for each in (await operator.status())[served.address].tenants] == ["a", "b"]
        stranger = await stack.enter_async_context(served.client(security=ClientSecurity()))
        with pytest.raises(RolloutServiceError, match="UNAUTHENTICATED"):
            await stranger.status()
