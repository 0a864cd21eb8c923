"""The sandbox provider of inspect_ai against a real executor: inspect's own checks of providers, and evaluations.

The image is a small system of this machine's programs, whose own user is not root, as some of the checks want it.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from executor_service import (
    ExecutorClient,
    ExecutorUnavailable,
    InvalidRequest,
    NotFound,
    SandboxLost,
    SessionNotFound,
)
from fairbox.errors import ConfigError
from fairbox_inspect import FairboxSandboxConfig
from rollout.cli import main
from tests.executor.images.archives import Entry, folder, host_layer, layer, layout_files, write_folder
from tests.executor.levels import LEVELS
from tests.executor.servers import Server, wait_for

inspect_ai = pytest.importorskip("inspect_ai", reason="inspect_ai is not installed: make test-interop")

from inspect_ai.util import (  # noqa: E402
    OutputLimitExceededError,
    SandboxEnvironmentSpec,
    SandboxUnavailableError,
    SandboxUserUnsupportedError,
)
from inspect_ai.util._sandbox.self_check import *  # noqa: E402, F403 - the checks

from fairbox_inspect.sandbox import FairboxSandboxEnvironment  # noqa: E402

pytestmark = [pytest.mark.inspect, pytest.mark.filterwarnings("ignore::DeprecationWarning")]  # of its libraries

PROGRAMS = "bash cat chmod env grep head id ls mkdir mkfifo printf ps rm rmdir sh sleep tail touch tr wc whoami"
ADD_USER = b"""#!/bin/sh
for name; do :; done
echo "$name:x:1500:1500::/home/$name:/bin/sh" >> /etc/passwd
"""
PEOPLE = b"root:x:0:0::/root:/bin/sh\nagent:x:1000:1000::/home/agent:/bin/sh\n"
SAMPLES = 64


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with tempfile.TemporaryDirectory(prefix="fairbox-inspect-") as top:
        Path(top).chmod(0o755)
        tools = [Entry(f"usr/sbin/{name}", ADD_USER, mode=0o755) for name in ("adduser",)]
        own = layer(Entry("etc/passwd", PEOPLE), folder("home"), folder("home/agent"), folder("work"), *tools)
        path = "PATH=/usr/sbin:/usr/bin"
        files = layout_files(
            [host_layer(*PROGRAMS.split()), own], name="small", User="agent", WorkingDir="/work", Env=[path]
        )
        archive = write_folder(Path(top) / "archive", files)
        assert main(["image", "add", str(archive), "--dir", f"{top}/store"]) == 0
        level = next(each for each in LEVELS if not each.landlock and each.place is None)
        with level.running(f"image_dir={top}/store", "max_concurrent=8", "max_queued=500") as started:
            yield started


@pytest_asyncio.fixture
async def sandbox_env(server: Server) -> AsyncIterator[Any]:
    async for made in sandbox(server):
        yield made


async def sandbox(server: Server, **config: Any) -> AsyncIterator[Any]:
    found = FairboxSandboxConfig(image="small", executor=server.target, **config)
    await FairboxSandboxEnvironment.task_init("test", found)
    made = await FairboxSandboxEnvironment.sample_init("test", found, {})
    try:
        yield made["default"]
    finally:
        await FairboxSandboxEnvironment.sample_cleanup("test", found, made, False)


async def test_commands_are_the_users_and_work_together(sandbox_env: Any) -> None:
    assert (await sandbox_env.exec(["whoami"])).stdout == "agent\n"
    assert (await sandbox_env.exec(["whoami"], user="root")).stdout == "root\n"
    with pytest.raises(SandboxUserUnsupportedError, match="no user 'nobody-here'"):
        await sandbox_env.exec(["id"], user="nobody-here")
    await sandbox_env.exec(["mkfifo", "/work/pipe"])
    reader = asyncio.create_task(sandbox_env.exec(["cat", "/work/pipe"]))
    await sandbox_env.exec(["sh", "-c", "echo 'a b' > /work/pipe"])
    assert (await reader).stdout == "a b\n"
    missing = await sandbox_env.exec(["no-such-program"])
    assert (missing.success, missing.returncode) == (False, 127)
    signalled = await sandbox_env.exec(["sh", "-c", "echo before; kill -SEGV $$"])
    assert (signalled.returncode, signalled.stdout) == (139, "before\n")
    assert (await sandbox_env.exec(["pwd"], cwd="/nowhere")).returncode == 1


async def test_output_and_files_beyond_the_limits_are_said(sandbox_env: Any) -> None:
    with pytest.raises(OutputLimitExceededError, match="10 MiB") as caught:
        await sandbox_env.exec(["head", "-c", "11000000", "/dev/zero"])
    assert len(caught.value.truncated_output or "") == 10 << 20
    await sandbox_env.exec(["sh", "-c", "head -c 70000000 /dev/zero > zeros"])  # more than its file_bytes
    assert len(await sandbox_env.read_file("zeros", text=False)) == 64 << 20
    await sandbox_env.write_file("-odd name", b"\xff")
    with pytest.raises(UnicodeDecodeError):
        await sandbox_env.read_file("-odd name")
    with pytest.raises(NotImplementedError):
        await sandbox_env.connection()


async def test_a_session_that_the_command_ends_is_no_fault_of_ours(server: Server) -> None:
    async for small in sandbox(server, memory_bytes=64 << 20):
        result = await small.exec(["sh", "-c", "x=$(head -c 200000000 /dev/zero | tr '\\0' a); echo $x"])
        if result.returncode == 127:
            pytest.fail(result.stderr)
        assert (result.success, result.returncode) == (False, 137)
        assert "of memory" in result.stderr
        with pytest.raises(SandboxUnavailableError, match="was killed for its memory limit"):
            await small.exec(["id"])


async def test_failures_of_ours_are_errors_and_no_results(server: Server) -> None:
    async for lost in sandbox(server):
        async with ExecutorClient(server.target) as client:
            running = asyncio.create_task(lost.exec(["sleep", "60"]))
            (session,) = await client.list_sessions(owner="test/")
            while not (await client.list_sessions(owner="test/"))[0].busy:
                await asyncio.sleep(0.05)
            await client.delete_session(session.session_id)
        with pytest.raises((SandboxLost, SessionNotFound), match="was deleted"):
            await running
        with pytest.raises(SessionNotFound, match="was deleted"):
            await lost.exec(["id"])
    for config, error in (("image=nowhere", "no image 'nowhere'"), ("image=small;user=nobody", "user is 'nobody'")):
        with pytest.raises((InvalidRequest, NotFound), match=error):
            await FairboxSandboxEnvironment.sample_init("t", f"{config};executor={server.target}", {})
    with pytest.raises(ExecutorUnavailable):
        await FairboxSandboxEnvironment.task_init("t", "executor=127.0.0.1:1")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", {}),
        ("image=a/b:1; memory_bytes=5;user=c", {"image": "a/b:1", "memory_bytes": 5, "user": "c"}),
        (
            "/tasks/image=docker:/ghcr.io/b:1;executor=dns:/h:1",
            {"image": "docker://ghcr.io/b:1", "executor": "dns:///h:1"},
        ),
        ("executor=dns:///h:1;image=docker://ghcr.io/b", {"image": "docker://ghcr.io/b", "executor": "dns:///h:1"}),
    ],
)
def test_configurations_are_read(text: str, found: dict[str, Any]) -> None:
    config = FairboxSandboxConfig.parse(text)
    assert config == FairboxSandboxConfig(**found)
    spec = SandboxEnvironmentSpec("fairbox", config)
    assert SandboxEnvironmentSpec.model_validate(spec.model_dump()) == spec  # as a log of inspect's keeps it


@pytest.mark.parametrize("text", ["memory_bytes=much", "colour=red", "image=a;b", "/tasks/python:3.12"])
def test_configurations_that_make_no_sense_are_named(text: str) -> None:
    with pytest.raises(ConfigError, match="sandbox fairbox: "):
        FairboxSandboxConfig.parse(text)


def test_an_evaluation_of_many_samples_at_once(server: Server, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.interop.inspect_eval", f"image=small;executor={server.target}"]
    done = subprocess.run(
        [*command, str(SAMPLES), str(tmp_path)], capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stderr[-5000:]
    log = json.loads(done.stdout.splitlines()[-1])
    assert log["status"] == "success", log
    wanted = [{"error": None, "said": f"It is {n} * 7\nagent\n{n * 7}.", "score": "C"} for n in range(SAMPLES)]
    assert log["samples"] == wanted
    wait_for(lambda: server.status().images.in_use == 0)
