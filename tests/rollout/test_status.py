"""`fairbox status` against real limiters, as a person and as a program run it."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from fairbox.errors import ConfigError
from fairbox.net.serving import GrpcServer
from limiter import ExecutorSession, LimiterClient
from limiter.config import BucketConfig, LimiterConfig
from limiter.leadership.file import FileLeadership
from limiter.server import LimiterServer
from limiter.v1 import limiter_pb2, limiter_pb2_grpc
from rollout.cli import main
from rollout.cli.status import StatusConfig
from tests.limiter.servers import ANYWHERE, ROOT, limiter_server, queued, status_of


@asynccontextmanager
async def started(*words: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """`fairbox status` with these words; killed at the end."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "rollout.cli", "status", *words),
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def status(*words: str) -> tuple[int | None, str, str]:
    """Exit code, stdout and stderr of `fairbox status`."""
    async with started("timeout_s=50", *words) as process, asyncio.timeout(60):
        out, err = await process.communicate()
    return process.returncode, out.decode(), err.decode()


async def as_json(*words: str) -> dict[str, Any]:
    code, out, err = await status("--json", *words)
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert isinstance(found, dict)
    return found


async def test_everything_of_a_busy_limiter_is_shown() -> None:
    async with (
        limiter_server(2) as server,
        LimiterClient(server.address, name="trainer[0]") as client,
        ExecutorSession(server.address, executor_id="pod-7") as executor,
        client.lease() as bound,
        client.lease(),
    ):
        await executor.bind(bound, run_id="run-1")
        waiter = asyncio.create_task(client.lease().__aenter__())
        await queued(server, 1)
        words = (f"limiter={server.admin_address}", "executor=")
        found = await as_json(*words)
        assert found["executors"] == []
        limiter = found["limiter"]
        assert (limiter["problem"], limiter["status"]["leader"], limiter["status"]["recovering"]) == ("", True, False)
        (bucket,) = limiter["status"]["buckets"]
        expected = {"held": 2, "bound": 1, "queued": 1, "effective_limit": 2, "rejected_total": "0"}
        assert {name: bucket[name] for name in expected} == expected
        assert {lease["holder_name"]: lease["state"] for lease in limiter["leases"]} == {
            "pod-7": "LEASE_STATE_BOUND",
            "trainer[0]": "LEASE_STATE_GRANTED",
        }
        code, out, err = await status(*words)
        assert (code, err) == (0, "")
        assert f"limiter on {server.admin_address}" in out
        told = " ".join(out.split())
        assert f"epoch {server.statistics().epoch} leader true" in told
        assert "buckets config name code" in told
        assert "held 2 bound 1 queued 1" in told
        assert "state LEASE_STATE_BOUND tokens 1" in told
        assert "holder_name pod-7" in told
        assert "holder_name trainer[0]" in told
        assert "run_id run-1" in told
        assert max(len(line) for line in out.splitlines()) <= 80
        waiter.cancel()


async def test_recovering_and_standing_by_are_told(tmp_path: Path) -> None:
    async with limiter_server(fresh=False, executor_ttl_s=600.0) as server:
        code, out, _ = await status(f"limiter={server.admin_address}", "executor=")
        assert code == 0
        assert "recovering true recovering_for_s " in " ".join(out.split())
    leader = FileLeadership(tmp_path / "state", name="limiter-1")
    await leader.campaign()
    config = LimiterConfig(
        listen=ANYWHERE,
        admin_listen=ANYWHERE,
        health_listen=ANYWHERE,
        metrics_listen="",
        buckets={"code": BucketConfig()},
        leader="file",
        state_file=str(tmp_path / "state"),
    )
    async with LimiterServer(config) as server:
        while (await status_of(server.admin_address)).leader_name != "limiter-1":
            await asyncio.sleep(0.02)
        code, out, _ = await status(f"limiter={server.admin_address}", "executor=")
        assert code == 0
        assert "standing by; it is not available: this limiter does not lead; limiter-1 does" in " ".join(out.split())
    await leader.resign()


async def test_who_does_not_answer_is_one_line_each() -> None:
    async with limiter_server() as server:
        code, out, err = await status(f"limiter={server.address}", "executor=127.0.0.1:1,127.0.0.1:2")
    hint = "fairbox status: `fairbox up` starts limiter and executor on this machine\n"
    assert (code, err) == (1, hint)
    lines = out.splitlines()
    assert lines[0].startswith(f"limiter on {server.address} is something else: it does not know this service")
    assert [line.partition(":1 ")[0] for line in lines if line.startswith("executor on 127.0.0.1:1 is not av")]
    assert len([line for line in lines if line.startswith("executor on 127.0.0.1:")]) == 2


async def test_ctrl_c_does_not_wait_for_who_does_not_answer() -> None:
    asked = asyncio.Event()

    class Silent(limiter_pb2_grpc.LimiterAdminServiceServicer):
        async def GetStatus(self, request: object, context: object) -> limiter_pb2.GetStatusResponse:
            asked.set()
            await asyncio.Event().wait()
            raise AssertionError("nobody sets it")

    def add(server: grpc.aio.Server) -> None:
        limiter_pb2_grpc.add_LimiterAdminServiceServicer_to_server(Silent(), server)  # type: ignore[abstract]

    async with (
        GrpcServer(ANYWHERE, add=add, services=[]) as server,
        started(f"limiter={server.address}", "executor=", "timeout_s=60") as process,
    ):
        await asyncio.wait_for(asked.wait(), 30)
        process.send_signal(signal.SIGINT)
        _, err = await asyncio.wait_for(process.communicate(), 30)
        assert (process.returncode, err) == (130, b"")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["timeout_s=0"], r"timeout_s is 0\.0, must be from 0\.1 to 600"),
        (["limiter=", "executor="], "nobody to ask"),
        (["executor=a:1,a:1"], "names one address twice"),
        (["limitr=a:1"], "did you mean limiter?"),
    ],
)
def test_a_bad_setting_is_one_sentence(words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", *words]) == ConfigError.exit_code
    captured = capsys.readouterr()
    assert captured.err.startswith("fairbox status: ")
    assert captured.err.count("\n") == 1
    assert captured.out == ""
    assert re.search(sentence, captured.err)


def test_executors_are_separated_by_commas() -> None:
    assert StatusConfig(executor=" a:1, b:2,,").executors == ["a:1", "b:2"]
