"""Starting servers: the plan, and what happens to a process whose owner ends. Servers themselves: test_sglang_*."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from fairbox.errors import FieldErrors
from rollout.engines import EngineUnavailable, keeper
from rollout.engines.launch import KeptProcess, LocalServers, server_env, visible_gpus
from rollout.engines.launch_plan import LaunchConfig, NodePart, plan, server_command

MODEL = Path("/models/m")


def test_replica_that_fits_a_machine_is_on_one() -> None:
    config = LaunchConfig(MODEL, replicas=3, tensor_parallel=4, cpus_per_gpu=2)
    replicas = plan(config)
    assert [replica.name for replica in replicas] == ["replica-0", "replica-1", "replica-2"]
    assert {replica.parts for replica in replicas} == {(NodePart(0, 4, 8.0),)}
    assert replicas[0].strategy == "STRICT_PACK"
    assert replicas[0].parts[0].bundle == {"CPU": 8.0, "GPU": 4.0}
    words = server_command(config, replicas[0], replicas[0].parts[0], host="10.0.0.1", port=31000)
    assert words[1:] == [
        *("-m", "sglang.launch_server", "--model-path", "/models/m"),
        *("--host", "10.0.0.1", "--port", "31000", "--tp-size", "4"),
    ]


def test_replica_of_several_machines_takes_them_whole() -> None:
    config = LaunchConfig(MODEL, tensor_parallel=16, gpus_per_node=8, args=("--dtype", "bfloat16"))
    (replica,) = plan(config)
    assert replica.parts == (NodePart(0, 8, 32.0), NodePart(1, 8, 32.0))
    assert replica.strategy == "STRICT_SPREAD"
    words = server_command(config, replica, replica.parts[1], host="b", port=1, meet="a:2")
    ends = ["--tp-size", "16", "--nnodes", "2", "--node-rank", "1", "--dist-init-addr", "a:2", "--dtype", "bfloat16"]
    assert words[-10:] == ends


def test_cpu_needs_no_gpu() -> None:
    (replica,) = plan(LaunchConfig(MODEL, gpus_per_node=0, cpus_per_gpu=1))
    assert replica.parts[0].bundle == {"CPU": 1.0}


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"replicas": 0}, "replicas is 0, must be at least 1"),
        ({"tensor_parallel": 12}, "tensor_parallel is 12, must be a multiple of 8 or at most 8"),
        ({"tensor_parallel": 2, "gpus_per_node": 0}, "must be 1 where gpus_per_node is 0"),
        ({"args": ("--port=1", "--x")}, "args holds --port, which the launcher sets itself"),
        ({"ready_within_s": 0}, "ready_within_s is 0"),
    ],
)
def test_impossible_plans_are_refused(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(FieldErrors, match=sentence):
        LaunchConfig(MODEL, **settings)


async def test_several_machines_need_ray() -> None:
    with pytest.raises(EngineUnavailable, match="needs 2 machines: launch it with Ray"):
        async with LocalServers(LaunchConfig(MODEL, tensor_parallel=16)):
            pass


async def test_server_that_does_not_start_says_why(tmp_path: Path) -> None:
    config = LaunchConfig(MODEL, gpus_per_node=0, python=sys.executable, args=("--nonsense",), restarts=0)
    with pytest.raises(EngineUnavailable, match="the server ended; its log ends"):
        async with LocalServers(config, logs=tmp_path):
            pass


def test_servers_get_neither_unscaled_logprobs_nor_generated_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SGLANG_RETURN_ORIGINAL_LOGPROB", "1")
    env = server_env({"A": "b"})
    assert "SGLANG_RETURN_ORIGINAL_LOGPROB" not in env
    assert (env["SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION"], env["A"]) == ("0", "b")


def test_gpus_are_given_out_in_order_from_those_that_are_shown() -> None:
    assert visible_gpus(2, 2, {}) == "2,3"
    assert visible_gpus(1, 2, {"CUDA_VISIBLE_DEVICES": "7, 5,GPU-3"}) == "5,GPU-3"
    with pytest.raises(EngineUnavailable, match="1 GPUs, but 2 are needed"):
        visible_gpus(0, 2, {"CUDA_VISIBLE_DEVICES": "4"})


STUBBORN = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN) if "deaf" in sys.argv else None
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
open(sys.argv[1], "a").write(f"{os.getpid()} {child.pid}\\n")
time.sleep(600)
"""


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


async def pids(file: Path, lines: int = 1) -> list[int]:
    """Of the program and its child, as it wrote them when it began for the `lines`-th time."""
    async with asyncio.timeout(30):
        while len(written := _lines(file)) < lines:
            await asyncio.sleep(0.02)
    return [int(word) for word in written[lines - 1].split()]


def _lines(file: Path) -> list[str]:
    return file.read_text().split("\n")[:-1] if file.exists() else []


async def gone(*processes: int) -> None:
    async with asyncio.timeout(30):
        while any(alive(pid) for pid in processes):
            await asyncio.sleep(0.02)


async def test_process_ends_with_its_context_and_everything_below_it(tmp_path: Path) -> None:
    words = [sys.executable, "-c", STUBBORN, str(tmp_path / "pids")]
    async with KeptProcess(words, env=os.environ, log=tmp_path / "log") as process:
        started = await pids(tmp_path / "pids")
        assert not process.ended
    await gone(*started)


async def test_process_ends_with_an_owner_that_is_killed(tmp_path: Path) -> None:
    words = keeper.command([sys.executable, "-c", STUBBORN, str(tmp_path / "pids")])
    program = f"import subprocess, time; subprocess.Popen({words!r}, stdin=subprocess.PIPE); time.sleep(600)"
    owner = await asyncio.create_subprocess_exec(sys.executable, "-c", program)
    started = await pids(tmp_path / "pids")
    owner.kill()
    await owner.wait()
    await gone(*started)


async def test_process_that_ends_by_itself_is_started_again_so_many_times(tmp_path: Path) -> None:
    words = [sys.executable, "-c", STUBBORN, str(tmp_path / "pids")]
    async with KeptProcess(words, env=os.environ, log=tmp_path / "log", restarts=1) as process:
        first = await pids(tmp_path / "pids")
        os.kill(first[0], signal.SIGKILL)
        second = await pids(tmp_path / "pids", 2)
        await gone(first[1])
        os.kill(second[0], signal.SIGKILL)
        async with asyncio.timeout(30):
            while not process.ended:
                await asyncio.sleep(0.02)
        assert "the server ended with -9; started again" in process.tail()
    await gone(*first, *second)


def test_keeper_says_how_it_is_used(capsys: pytest.CaptureFixture[str]) -> None:
    assert keeper.main(["--restarts", "1"]) == 2
    assert "usage" in capsys.readouterr().err


def test_deaf_process_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper, "_TERM_S", 0.2)
    process = subprocess.Popen([sys.executable, "-c", STUBBORN, str(tmp_path / "pids"), "deaf"], start_new_session=True)
    while not _lines(tmp_path / "pids"):
        time.sleep(0.02)
    keeper._end(process)
    assert process.returncode == -signal.SIGKILL
