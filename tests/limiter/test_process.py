"""The limiter as a process: health, reflection, grpcurl, signals, ports and settings."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from fairbox.errors import ConfigError
from fairbox.net.channels import open_channel
from fairbox.settings import check
from limiter.config import BucketConfig, LimiterConfig
from tests.limiter.servers import ROOT, limiter_server

_FREE = ["listen=127.0.0.1:0", "admin_listen=127.0.0.1:0", "health_listen=127.0.0.1:0", "metrics_listen="]


class _process:  # noqa: N801 - a context manager
    """`python -m limiter`, listening; killed at the end."""

    def __init__(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "limiter", "fresh=true", *_FREE, *arguments]
        self._process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)

    def __enter__(self) -> subprocess.Popen[str]:
        assert self._process.stderr is not None
        assert "listening on" in self._process.stderr.readline()
        return self._process

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()


async def test_health_and_reflection_answer() -> None:
    async with limiter_server() as server:
        async with open_channel(server.health_address) as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            for service in ("", "liveness", "readiness"):
                answer = await stub.Check(health_pb2.HealthCheckRequest(service=service))
                assert answer.status == health_pb2.HealthCheckResponse.SERVING
        for address, name in (
            (server.address, "limiter.v1.LimiterService"),
            (server.admin_address, "limiter.v1.LimiterAdminService"),
        ):
            assert name in await _listed(address)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
def test_signal_ends_it_cleanly(number: signal.Signals, code: int) -> None:
    with _process() as process:
        process.send_signal(number)
        _, errors = process.communicate(timeout=30)
        assert process.returncode == code
        assert "Traceback" not in errors


def test_busy_port_ends_in_one_sentence() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        command = [sys.executable, "-m", "limiter", f"listen=127.0.0.1:{port}", *_FREE[1:]]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr == f"limiter: listen: can't listen on 127.0.0.1:{port}: Address already in use\n"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["buckets.code.max_in_fligth=4"], "did you mean"),
        (["listen=0.0.0.0:0"], "not loopback"),
        (["grace_s=-1"], "grace_s is -1.0, must be from 0 to 3600"),
    ],
)
def test_bad_setting_ends_in_one_sentence(arguments: list[str], sentence: str) -> None:
    command = [sys.executable, "-m", "limiter", *_FREE, *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert sentence in done.stderr
    assert done.stderr.count("\n") == 1


def test_configuration_is_checked_by_path() -> None:
    with pytest.raises(ConfigError, match=r"buckets\.code\.max_in_flight is 0, must be from 1"):
        LimiterConfig(buckets={"code": BucketConfig(max_in_flight=0)}).validate()
    with pytest.raises(ConfigError, match=r"buckets\.a b: a name is 'a b', must"):
        LimiterConfig(buckets={"a b": BucketConfig()}).validate()
    for bucket, sentence in (
        (BucketConfig(rate_per_s=-1.0), r"rate_per_s is -1\.0, must be 0, or from 0\.001 to"),
        (BucketConfig(rate_per_s=float("nan")), r"rate_per_s is nan"),
        (BucketConfig(max_hold_s=1e9), r"max_hold_s is 1000000000\.0, must be from 0\.0 to"),
    ):
        with pytest.raises(ConfigError, match=r"buckets\.code\." + sentence):
            LimiterConfig(buckets={"code": bucket}).validate()
    with pytest.raises(ConfigError, match=r"buckets\.code\.order is 'lifo', must be one of: fifo, fair_by_tenant"):
        check(LimiterConfig(buckets={"code": BucketConfig(order="lifo")}))


async def _listed(address: str) -> list[str]:
    """Names that a server's reflection lists."""
    async with open_channel(address) as channel:
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        call = stub.ServerReflectionInfo()
        await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))
        answer = await call.read()
        call.cancel()
        return [service.name for service in answer.list_services_response.service]
