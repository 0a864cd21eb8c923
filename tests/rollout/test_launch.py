"""Starting servers: the plan, and what happens to a process whose owner ends. Servers themselves: test_sglang_*."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from fairbox.errors import ConfigError
from rollout import engine_choice
from rollout.config import EngineSettings, LaunchSettings, RolloutConfig
from rollout.engines import EngineUnavailable
from rollout.engines.http import EngineHttp
from rollout.engines.sglang import keeper
from rollout.engines.sglang.launch import (
    KeptProcess,
    LaunchConfig,
    local_servers,
    server_command,
    server_env,
    visible_gpus,
)

MODEL = Path("/models/m")


def test_a_server_is_told_its_model_its_address_and_its_gpus() -> None:
    config = LaunchConfig(MODEL, tensor_parallel=4, args=("--dtype", "bfloat16"))
    words = server_command(config, host="10.0.0.1", port=31000)
    assert words == [
        *("python3", "-m", "sglang.launch_server", "--model-path", "/models/m"),
        *("--host", "10.0.0.1", "--port", "31000", "--tp-size", "4", "--dtype", "bfloat16"),
    ]
    assert (config.gpus, LaunchConfig(MODEL, on_cpu=True).gpus) == (4, 0)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"launch": LaunchSettings(replicas=-1)}, "engine.launch.replicas is -1, must be at least 0"),
        ({"launch": LaunchSettings(1, 0)}, "engine.launch.tensor_parallel is 0, must be at least 1"),
        ({"launch": LaunchSettings(ray=True)}, "engine.launch.ray is set, which has no meaning without engine.launch"),
        (
            {"launch": LaunchSettings(1), "urls": ["http://a"]},
            "engine.urls is set, which has no meaning with engine.l",
        ),
        (
            {"launch": LaunchSettings(1), "kind": "vllm"},
            "engine.launch is set, which has no meaning with engine.kind",
        ),
    ],
)
def test_settings_that_can_not_be_meant_are_named(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        EngineSettings(**{"kind": "sglang"} | settings).validate()


def test_workers_over_ray_start_no_servers_of_their_own() -> None:
    engine = EngineSettings(kind="sglang", launch=LaunchSettings(replicas=1))
    RolloutConfig(engine=engine).validate()
    with pytest.raises(ConfigError, match="with ray each worker would start servers"):
        RolloutConfig(engine=engine, ray=True).validate()


async def test_a_run_starts_the_servers_of_its_settings_and_ends_them(
    stand_in: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.json").write_text('{"vocab_size": 9}')
    made: list[EngineSettings] = []

    @contextlib.asynccontextmanager
    async def engine() -> AsyncIterator[None]:
        yield

    def make_engine(settings: EngineSettings, model_dir: Path) -> Any:
        made.append(settings)
        return engine()

    monkeypatch.setattr(engine_choice, "make_engine", make_engine)
    settings = EngineSettings(kind="sglang", launch=LaunchSettings(replicas=2, python=str(stand_in)))
    async with engine_choice.open_engine(settings, tmp_path, ray_address="auto"):
        (found,) = made
        assert len(set(found.urls)) == 2
        for url in found.urls:
            async with EngineHttp(url) as server:
                await server.get("/health", timeout_s=5)
    for url in found.urls:
        async with EngineHttp(url) as server:
            with pytest.raises(EngineUnavailable):
                await server.get("/health", timeout_s=5)


async def test_server_that_does_not_start_says_why() -> None:
    config = LaunchConfig(MODEL, on_cpu=True, python=sys.executable, args=("--nonsense",), restarts=0)
    with pytest.raises(EngineUnavailable, match=r"the server ended; its log ends:\n.*sglang"):
        async with local_servers(config):
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
    """Pids of the program and its child, as the program wrote them when it began for the `lines`-th time."""
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
    assert process.wait(30) == -signal.SIGKILL
