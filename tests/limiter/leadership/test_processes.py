"""Two limiters as processes of one machine: one serves, the other waits, and follows when the first is killed."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from pathlib import Path

import grpc.aio
import pytest

from fairbox.clock import MonotonicClock
from fairbox.config import load
from fairbox.errors import ConfigError
from limiter.config import LimiterConfig
from limiter.leadership import Alone
from limiter.leadership.file import FileLeadership
from limiter.server.app import open_leadership
from limiter.v1 import limiter_pb2 as pb
from tests.limiter.servers import ONE_OF_MANY, ROOT, LimiterProcess, admin_stub, limiter_process


async def leading(limiter: LimiterProcess, *, within: float) -> pb.GetStatusResponse:
    """The first status of a limiter that leads."""
    async with asyncio.timeout(within):
        while not (found := await limiter.status()).leader:
            await asyncio.sleep(0.02)
    return found


async def until_it_knows(limiter: LimiterProcess, leader: str) -> None:
    """Returns when a limiter that does not lead says who does."""
    async with asyncio.timeout(30), admin_stub(limiter) as stub:
        while True:
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await stub.ListLeases(pb.ListLeasesRequest(), timeout=30, wait_for_ready=True)
            if f"this limiter does not lead; {leader} on " in (refused.value.details() or ""):
                return
            await asyncio.sleep(0.05)


async def test_the_second_limiter_serves_when_the_first_is_killed(tmp_path: Path) -> None:
    settings = ("leader=file", f"state_file={tmp_path / 'state'}")
    async with limiter_process(*settings) as first:
        assert first.process is not None
        epoch = (await leading(first, within=30)).epoch
        async with limiter_process(*settings) as second:
            await until_it_knows(second, f"process {first.process.pid}")
            assert not (await second.status()).leader
            first.process.send_signal(signal.SIGSTOP)
            await asyncio.sleep(0.5)
            with pytest.raises(TimeoutError):
                await leading(second, within=0.5)
            await first.kill()
            assert (await leading(second, within=30)).epoch > epoch


def test_a_damaged_state_file_ends_the_program_with_its_name(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("{")
    free = ["listen=127.0.0.1:0", "admin_listen=127.0.0.1:0", "health_listen=127.0.0.1:0", *ONE_OF_MANY]
    command = [sys.executable, "-m", "limiter", *free, "leader=file", f"state_file={tmp_path / 'state'}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert f"limiter: state_file {tmp_path / 'state'} is damaged: " in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["leader=etcd"], "leader is 'etcd', must be one of: none, file, k8s"),
        (["leader=file"], "state_file is '' and leader is 'file'"),
        (["state_file=x"], "state_file is 'x' and leader is 'none'"),
        (["leader=k8s", "lease_duration_s=0.5"], "lease_duration_s is 0.5, must be from 1 to 600"),
    ],
)
def test_settings_are_checked(words: list[str], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        load(LimiterConfig, prefix="LIMITER", prog="limiter", description="", argv=words, env={})


def test_settings_choose_the_leadership(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(open_leadership(LimiterConfig(), MonotonicClock()), Alone)
    by_file = LimiterConfig(leader="file", state_file=str(tmp_path / "state"))
    assert isinstance(open_leadership(by_file, MonotonicClock()), FileLeadership)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setenv("POD_NAMESPACE", "fairbox")
    with pytest.raises(ConfigError, match="needs a pod"):
        open_leadership(LimiterConfig(leader="k8s"), MonotonicClock())
