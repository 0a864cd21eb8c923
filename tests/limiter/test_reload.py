"""Buckets that change while the limiter runs: by the operators' RPC and by the configuration file."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import grpc
import grpc.aio
import pytest

from fairbox.config import config_files, load
from fairbox.net.grpc_errors import field_errors
from limiter import LimiterClient
from limiter.config import LimiterConfig
from limiter.core import BucketLimits, BucketOrder
from limiter.server.reload import Reload
from limiter.v1 import limiter_pb2 as pb
from tests.limiter.servers import admin_stub, code_of, limiter_server, queued


async def test_an_operator_changes_a_bucket_under_its_version() -> None:
    async with (
        limiter_server(1) as server,
        admin_stub(server) as admin,
        LimiterClient(server.address) as client,
        client.lease(),
    ):
        waiter = asyncio.create_task(client.lease().__aenter__())
        await queued(server, 1)
        config = (await admin.GetStatus(pb.GetStatusRequest())).buckets[0].config
        assert config.version == 1
        config.max_in_flight = 2
        config.order = pb.BUCKET_ORDER_FAIR_BY_TENANT
        config.adaptive = True
        request = pb.ConfigureBucketRequest(config=config, expected_version=1)
        answer = (await admin.ConfigureBucket(request)).config
        assert (answer.version, answer.adaptive) == (2, True)
        await asyncio.wait_for(waiter, 5)
        assert (await admin.GetStatus(pb.GetStatusRequest())).buckets[0].config == answer
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await admin.ConfigureBucket(request)
        assert error.value.code() is grpc.StatusCode.ABORTED
        assert "is version 2, the change is for version 1" in str(error.value.details())


async def test_an_operator_creates_a_bucket_once() -> None:
    async with limiter_server() as server, admin_stub(server) as admin, LimiterClient(server.address) as client:
        request = pb.ConfigureBucketRequest(config=pb.BucketConfig(name="gpu", max_in_flight=1))
        config = (await admin.ConfigureBucket(request)).config
        assert (config.version, config.max_queued, config.start_by_s) == (1, 100_000, 5.0)
        async with client.lease("gpu"):
            pass
        assert await code_of(admin.ConfigureBucket(request)) is grpc.StatusCode.ABORTED
        request.expected_version = 7
        request.config.name = "tpu"
        assert await code_of(admin.ConfigureBucket(request)) is grpc.StatusCode.ABORTED


async def test_every_bad_field_of_a_bucket_is_named_and_nothing_changes() -> None:
    async with limiter_server() as server, admin_stub(server) as admin:
        bad = pb.BucketConfig(
            name="a b",
            rate_per_s=float("inf"),
            start_by_s=-1,
            order=9,  # type: ignore[arg-type]
        )
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await admin.ConfigureBucket(pb.ConfigureBucketRequest(config=bad))
        names = [each.field for each in field_errors(error.value)]
        fields = ["order", "name", "max_in_flight", "start_by_s", "rate_per_s"]
        assert names == [f"config.{field}" for field in fields]
        assert [bucket.limits.name for bucket in server.statistics().buckets] == ["code"]


async def test_a_paused_bucket_queues_until_it_goes_on() -> None:
    async with limiter_server() as server, admin_stub(server) as admin, LimiterClient(server.address) as client:
        config = pb.BucketConfig(name="code", max_in_flight=2, paused=True)
        await admin.ConfigureBucket(pb.ConfigureBucketRequest(config=config, expected_version=1))
        waiter = asyncio.create_task(client.lease().__aenter__())
        await queued(server, 1)
        assert server.statistics().bucket().effective_limit == 2
        config.paused = False
        await admin.ConfigureBucket(pb.ConfigureBucketRequest(config=config, expected_version=2))
        await asyncio.wait_for(waiter, 5)


class Files:
    """A configuration file as a ConfigMap mounts it: behind a link that is swapped."""

    def __init__(self, folder: Path, text: str) -> None:
        self._folder = folder
        self._count = 0
        self.path = folder / "limiter.yaml"
        self.path.symlink_to("..data/limiter.yaml")
        self.write(text)
        argv = ["--config", str(self.path), "buckets.flag.max_in_flight=3"]
        config = self._load(argv)
        self.changes: list[BucketLimits] = []
        self.leads = True
        self.reload = Reload(config, lambda: self._load(argv), config_files(LimiterConfig, argv), every=0.01)

    def _load(self, argv: list[str]) -> LimiterConfig:
        return load(LimiterConfig, prefix="LIMITER", prog="limiter", description="", argv=argv, env={})

    def write(self, text: str) -> None:
        self._count += 1
        data = self._folder / f"..{self._count}"
        data.mkdir()
        (data / "limiter.yaml").write_text(text)
        link = self._folder / "..next"
        link.symlink_to(data.name)
        link.rename(self._folder / "..data")

    def configure(self, limits: BucketLimits) -> bool:
        if self.leads:
            self.changes.append(limits)
        return self.leads

    async def look(self) -> list[BucketLimits]:
        self.changes.clear()
        await self.reload.look(self.configure)
        return list(self.changes)


async def test_a_changed_file_changes_the_buckets_that_it_changes(tmp_path: Path) -> None:
    files = Files(tmp_path, "buckets: {code: {max_in_flight: 4}, gpu: {max_in_flight: 1}}")
    assert await files.look() == []
    files.write("buckets: {code: {max_in_flight: 5, order: fair_by_tenant}, gpu: {max_in_flight: 1}, new: {}}")
    assert sorted(await files.look(), key=lambda limits: limits.name) == [
        BucketLimits("code", 5, order=BucketOrder.FAIR_BY_TENANT),
        BucketLimits("new"),
    ]
    assert await files.look() == []


async def test_an_unacceptable_file_is_logged_and_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = Files(tmp_path, "buckets: {code: {max_in_flight: 4}}")
    for text, word in (
        ("buckets: {code: {max_in_flight: 0}}", "max_in_flight is 0"),
        ("buckets: {code: {max_in_fligth: 5}}", "did you mean"),
        ("buckets: [", "old settings stay"),
    ):
        files.write(text)
        caplog.clear()
        assert await files.look() == []
        assert word in caplog.text
    files.path.unlink()
    assert await files.look() == []
    files.path.symlink_to("..data/limiter.yaml")
    files.write("buckets: {code: {max_in_flight: 6}}")
    assert [limits.max_in_flight for limits in await files.look()] == [6]


async def test_what_can_not_change_live_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    files = Files(tmp_path, "buckets: {code: {max_in_flight: 4}, gpu: {}}")
    files.write("{grace_s: 3, buckets: {gpu: {}}}")
    with caplog.at_level(logging.WARNING):
        assert await files.look() == []
    assert "grace_s has changed in the configuration, which needs a restart" in caplog.text
    assert "bucket code is no longer configured; it stays" in caplog.text


async def test_a_change_waits_until_the_limiter_leads(tmp_path: Path) -> None:
    files = Files(tmp_path, "buckets: {code: {max_in_flight: 4}}")
    files.leads = False
    files.write("buckets: {code: {max_in_flight: 5}}")
    assert await files.look() == []
    files.leads = True
    assert [limits.max_in_flight for limits in await files.look()] == [5]


async def test_the_file_counts_versions_as_operators_do(tmp_path: Path) -> None:
    files = Files(tmp_path, "buckets: {code: {max_in_flight: 4}}")
    async with limiter_server(4) as server, admin_stub(server) as admin:
        running = asyncio.create_task(files.reload.run(server.configure))
        try:
            config = pb.BucketConfig(name="code", max_in_flight=9)
            await admin.ConfigureBucket(pb.ConfigureBucketRequest(config=config, expected_version=1))
            files.write("buckets: {code: {max_in_flight: 7}}")
            async with asyncio.timeout(10):
                while server.statistics().bucket().limits.version != 3:
                    await asyncio.sleep(0.01)
            assert server.statistics().bucket().limits.max_in_flight == 7
        finally:
            running.cancel()
            await asyncio.wait([running])
