"""Crashes of any process in the middle of the work: what is lost is said, masked, and given back."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import grpc
import pytest

from executor_service.v1 import executor_pb2, executor_pb2_grpc
from limiter.v1 import limiter_pb2, limiter_pb2_grpc
from tests.e2e.conftest import Service, children

HOLDER = textwrap.dedent(
    """
    import asyncio, sys
    from limiter import LimiterClient
    async def main():
        async with LimiterClient(sys.argv[1]) as limiter, limiter.lease(bucket="code"):
            print("held", flush=True)
            await asyncio.sleep(600)
    asyncio.run(main())
    """
)
RUNNER = textwrap.dedent(
    """
    import asyncio, sys
    from executor_service import ExecutorClient
    from limiter import LimiterClient
    async def main():
        async with LimiterClient(sys.argv[1]) as limiter, ExecutorClient(sys.argv[2]) as executor:
            async with limiter.lease(bucket="code") as lease:
                print("running", flush=True)
                await executor.execute("import time; time.sleep(60)", lease=lease)
    asyncio.run(main())
    """
)


def bucket(service: Service) -> limiter_pb2.BucketStatus:
    """State of the bucket `code`."""
    with grpc.insecure_channel(service.ports.limiter_admin) as channel:
        stub = limiter_pb2_grpc.LimiterAdminServiceStub(channel)
        return stub.GetStatus(limiter_pb2.GetStatusRequest(), timeout=10).buckets[0]


def executor_status(service: Service) -> executor_pb2.GetStatusResponse:
    """State of the executor."""
    with grpc.insecure_channel(service.ports.executor) as channel:
        stub = executor_pb2_grpc.ExecutorServiceStub(channel)
        return stub.GetStatus(executor_pb2.GetStatusRequest(), timeout=10)


def wait_for(what: Any, within_s: float = 30.0) -> None:
    """Until `what()` is true; the deadline is generous, because nothing is timed here."""
    deadline = time.monotonic() + within_s
    while not what():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)


def child(parent: int, module: str) -> int:
    """Process id of one of the two services below a process."""
    for pid in children(parent):
        if f"-m\0{module}" in Path(f"/proc/{pid}/cmdline").read_text():
            return pid
    raise AssertionError(f"no {module} below {parent}")


def test_killing_a_client_frees_its_token(service: Service) -> None:
    words = [sys.executable, "-c", HOLDER, service.ports.limiter]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        assert bucket(service).held == 1
        holder.kill()
    wait_for(lambda: bucket(service).held == 0)


def test_killing_a_client_kills_its_program_and_frees_its_token(service: Service) -> None:
    words = [sys.executable, "-c", RUNNER, service.ports.limiter, service.ports.executor]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as runner:
        wait_for(lambda: executor_status(service).running == 1 and bucket(service).bound == 1)
        runner.kill()
    wait_for(lambda: executor_status(service).running == 0 and bucket(service).held == 0)


def rollout(service: Service, out: Path, *args: str) -> subprocess.Popen[str]:
    """Starts `fairbox rollout` against a running service."""
    settings = [f"executor={service.ports.executor}", f"limiter={service.ports.limiter}", f"out={out}", *args]
    words = [sys.executable, "-m", "rollout.cli", "rollout", *settings]
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def dumped(out: Path) -> list[dict[str, Any]]:
    """Every trajectory of a dump."""
    return [json.loads(line) for path in sorted(out.glob("*.jsonl")) for line in path.read_text().splitlines()]


@pytest.mark.timeout(300)
def test_killing_the_executor_masks_what_it_cost_and_nothing_else(tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = ["rollout", "--up", f"out={out}", "n=6", "concurrency=2", "infra_retries=0"]
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen([sys.executable, "-m", "rollout.cli", *words], stdout=log, stderr=log)
    try:
        wait_for(lambda: out.exists() and dumped(out), within_s=150)
        os.kill(child(process.pid, "executor_service"), signal.SIGKILL)
        assert process.wait(timeout=200) == 0
    finally:
        process.kill()
        process.wait()
    printed = (tmp_path / "log").read_text()
    assert "Traceback" not in printed
    rows = dumped(out)
    assert len(rows) == 6
    assert {row["cause"] for row in rows} == {"POLICY", "INFRA"}
    for row in rows:
        assert row["masked"] is (row["cause"] == "INFRA")
        assert (row["score"] is None) is row["masked"]


@pytest.mark.timeout(300)
def test_ctrl_c_in_a_rollout_keeps_what_is_finished(service: Service, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with rollout(service, out, "n=8", "concurrency=2") as process:
        wait_for(lambda: out.exists() and dumped(out), within_s=150)
        process.send_signal(signal.SIGINT)
        printed, _ = process.communicate(timeout=60)
    assert process.returncode == 130, printed
    assert "Traceback" not in printed
    assert 1 <= len(dumped(out)) < 8
    wait_for(lambda: bucket(service).held == 0 and bucket(service).queued == 0)
