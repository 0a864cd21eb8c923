"""`python -m rollout`: a real model, limiter and executor, a trainer, and a kill between."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from fairbox.net.ports import free_ports
from rollout.loop import TrajectoryResult
from rollout.service import RolloutClient, RolloutTask
from rollout.stack import LocalStack

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "how-to" / "rollout-service.md"
WORDS = ("limits.max_turns=2", "limits.max_turn_tokens=24", "concurrency=2", "metrics_listen=")

pytestmark = pytest.mark.timeout(600)


@asynccontextmanager
async def served(*words: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """A service that is ready, in a process of its own; killed when the block is left."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "rollout", *WORDS, *words),
        cwd=ROOT,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stderr is not None
    log = b""
    try:
        async with asyncio.timeout(300):
            while b"listening on" not in log:
                line = await process.stderr.readline()
                assert line, log.decode()
                log += line
        yield process
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


def said(*words: str) -> str:
    """The one line of a service that does not begin."""
    command = [sys.executable, "-P", "-m", "rollout", *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200)
    assert done.returncode != 0
    assert done.stderr.count("\n") == 1, done.stderr
    return done.stderr


def by_hand(port: int) -> list[str]:
    """Output of each of the page's lines with grpcurl, which learns by reflection what there is."""
    lines = re.findall(r"^.*grpcurl .*$", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    env = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    found = []
    for line in lines:
        words = ["sh", "-c", line.replace("127.0.0.1:50054", f"127.0.0.1:{port}")]
        done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True, env=env)
        found.append(done.stdout)
    return found


async def test_a_killed_service_goes_on_and_its_trainer_notices_nothing(tmp_path: Path, model_dir: Path) -> None:
    port, health, *_ = free_ports(2)
    tasks = [RolloutTask(f"t{n}", problem=n % 2, group=f"g{n % 2}", seed=n) for n in range(6)]
    found: dict[str, TrajectoryResult] = {}
    async with (
        LocalStack() as stack,
        RolloutClient(f"127.0.0.1:{port}", unavailable_after=300.0) as rollouts,
    ):
        words = (
            *(f"listen=127.0.0.1:{port}", f"health_listen=127.0.0.1:{health}", f"out={tmp_path / 'out'}"),
            *(f"limiter={stack.ports.limiter}", f"executor={stack.ports.executor}"),
        )
        async with served(*words) as first:
            assert (await rollouts.submit(tasks)).accepted == 6
            async with asyncio.timeout(200), rollouts.stream() as stream:
                while len(found) < 2:
                    trajectory = await anext(stream)
                    found[trajectory.id] = trajectory.result
                    await stream.acknowledge(trajectory.id)
            os.kill(first.pid, signal.SIGKILL)
            await first.wait()
        changed = await asyncio.to_thread(said, *WORDS, *words, "limits.max_turns=1")
        assert "limits.max_turns is 1, but was 2 when the run began" in changed
        async with served(*words) as second:
            assert (await rollouts.submit(tasks)).accepted == 0  # a trainer that does not know better
            async with asyncio.timeout(200), rollouts.stream() as stream:
                while len(found) < 6:
                    trajectory = await anext(stream)
                    assert trajectory.id not in found
                    found[trajectory.id] = trajectory.result
                    await stream.acknowledge(trajectory.id)
            status, submitted, _ = await asyncio.to_thread(by_hand, port)
            assert json.loads(status)["resumed_total"]
            assert json.loads(submitted)["accepted"] == 1
            second.send_signal(signal.SIGTERM)
            assert await asyncio.wait_for(second.wait(), 60) == 0
    for name, result in found.items():
        assert not result.masked, result.error
        assert result.sampling.seed == int(name[1:])
        assert sum(result.trajectory.response_mask)


@pytest.mark.parametrize(
    ("word", "sentence"),
    [
        ("resume=true", "resume is set, which has no meaning for a service: it always goes on with what is in out"),
        ("journal=none", "journal is 'none', must be 'process' or 'machine': a service keeps what it accepts"),
        ("listen=0.0.0.0:1", "listen is '0.0.0.0:1', which is not loopback, and nothing would protect it"),
    ],
)
def test_settings_without_a_meaning_are_refused(tmp_path: Path, word: str, sentence: str) -> None:
    assert sentence in said(f"out={tmp_path}", word)
