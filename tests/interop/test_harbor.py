"""Harbor itself with sandboxes of a real executor: its own command, and each call that it makes of an environment."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import subprocess
import sys
import tarfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from executor_service import ExecutorClient, ExecutorUnavailable, InvalidRequest, NotFound, SandboxLost
from tests.executor.images.archives import Entry, folder, host_layer, layer
from tests.executor.levels import LEVELS
from tests.executor.servers import Server, wait_for
from tests.rollout.harbor.folders import EXAMPLES, PROGRAMS, add_image, files_layer, python_layer

pytest.importorskip("harbor", reason="Harbor is not installed: make test-interop")

from harbor.models.task.config import EnvironmentConfig, NetworkMode, NetworkPolicy
from harbor.models.trial.config import ResourceMode
from harbor.models.trial.paths import TrialPaths

from fairbox_harbor import FairboxEnvironment
from tests.rollout.harbor.test_examples import NEEDS

pytestmark = [pytest.mark.harbor, pytest.mark.filterwarnings("ignore::DeprecationWarning")]  # of its libraries

TOOLS = (*PROGRAMS, "find", "head", "id", "pwd", "seq", "tail", "tar", "tr", "wc", "whoami")
OFFLINE = NetworkPolicy(network_mode=NetworkMode.NO_NETWORK)
TRIALS = 64


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    top = tmp_path_factory.mktemp("harbor")
    for name, programs in NEEDS.items():
        layers = [host_layer(*TOOLS, *programs), *[python_layer()] * ("python3" in programs)]
        add_image(top / "store", name, [*layers, files_layer(EXAMPLES / name / "environment" / "files")])
    people = layer(Entry("etc/passwd", b"root:x:0:0::/root:/bin/sh\nagent:x:1000:1000::/app:/bin/sh\n"), folder("tmp"))
    add_image(
        top / "store", "plain", [host_layer(*TOOLS), people, layer(Entry("app/README", b"Empty.\n"))], user="agent"
    )
    level = next(each for each in LEVELS if not each.landlock and each.place is None)
    with level.running(f"image_dir={top}/store", "max_concurrent=8", "max_queued=500") as started:
        yield started


def environment(server: Server, tmp_path: Path, *, policy: NetworkPolicy = OFFLINE, **settings: Any) -> Any:
    """As Harbor makes one for a trial. `settings`: the task's [environment], and options."""
    options = {
        name: settings.pop(name) for name in ("image", "offline", "memory_enforcement_policy") if name in settings
    }
    place = tmp_path / "environment"
    place.mkdir(exist_ok=True)
    return FairboxEnvironment(
        environment_dir=place,
        environment_name="plain",
        session_id="plain__abc__env",
        trial_paths=TrialPaths(tmp_path / "trial"),
        task_env_config=EnvironmentConfig(**settings),
        network_policy=policy,
        executor=server.target,
        **options,
    )


@asynccontextmanager
async def started(server: Server, tmp_path: Path, **settings: Any) -> AsyncIterator[Any]:
    made = environment(server, tmp_path, **settings)
    await made.start(force_build=False)
    try:
        yield made
    finally:
        await made.stop(delete=True)


def run_harbor(server: Server, tmp_path: Path, data: Path, agent: str, *more: str) -> list[dict[str, Any]]:
    """Results of the trials of `harbor run`."""
    program = Path(sys.executable).with_name("harbor")
    command = [str(program), "run", "-p", str(data), "-a", agent, "-o", str(tmp_path / agent), "--job-name", "job"]
    place = ["-e", "fairbox_harbor:FairboxEnvironment", "--ek", f"executor={server.target}", "--ek", "offline=true"]
    done = subprocess.run(
        [*command, *place, *more],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
        env={**os.environ, "HARBOR_TELEMETRY": "off"},
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-5000:]
    return [json.loads(path.read_text()) for path in sorted((tmp_path / agent / "job").glob("*/result.json"))]


@pytest.mark.parametrize(("agent", "worth"), [("oracle", 1.0), ("nop", 0.0)])
def test_solutions_are_worth_all_and_nothing_is_worth_nothing(
    server: Server, tmp_path: Path, agent: str, worth: float
) -> None:
    results = run_harbor(server, tmp_path, EXAMPLES, agent, "-n", "6")
    assert [result["exception_info"] for result in results] == [None] * len(NEEDS)
    found = {result["task_name"].split("/")[-1]: result["verifier_result"]["rewards"] for result in results}
    assert {name: rewards["reward"] for name, rewards in found.items()} == dict.fromkeys(NEEDS, worth), found
    wait_for(lambda: server.status().images.in_use == 0)


def test_many_trials_at_once(server: Server, tmp_path: Path) -> None:
    """Many more than the executor runs at once: none of them fails for that."""
    results = run_harbor(server, tmp_path, EXAMPLES / "write-dedupe", "oracle", "-n", str(TRIALS), "-k", str(TRIALS))
    assert [result["exception_info"] for result in results] == [None] * TRIALS
    assert [result["verifier_result"]["rewards"] for result in results] == [{"reward": 1.0}] * TRIALS
    wait_for(lambda: server.status().images.in_use == 0)


async def test_commands_are_a_users_in_a_folder_with_variables(server: Server, tmp_path: Path) -> None:
    async with started(server, tmp_path, env={"TASK": "1"}) as made:
        assert (await made.exec("whoami; pwd; echo $TASK")).stdout == "agent\n/app\n1\n"
        assert (await made.exec("whoami", user="root")).stdout == "root\n"
        assert (await made.exec("id -u", user=1000)).stdout == "1000\n"
        with made.with_default_user("root"), made.scoped_exec_env({"TASK": "2"}):
            assert (await made.exec("whoami; echo $TASK$MORE", env={"MORE": "3"})).stdout == "root\n23\n"
        failed = await made.exec("echo out; echo err >&2; exit 3", cwd="/tmp")
        assert (failed.return_code, failed.stdout, failed.stderr) == (3, "out\n", "err\n")
        assert (await made.exec("pwd", cwd="/nowhere")).return_code == 1
        assert (await made.exec("sleep 1000 >/dev/null 2>&1 & echo left")).stdout == "left\n"
        with pytest.raises(RuntimeError, match="timed out after 1 s"):
            await made.exec("sleep 60", timeout_sec=1)
        assert await made.is_dir("/app")
        assert await made.is_file("README")
        assert not await made.is_file("/nothing")
    with pytest.raises(RuntimeError, match="has not been started, or has been stopped"):
        await made.exec("true")


async def test_a_workdir_is_made_and_is_where_commands_begin(server: Server, tmp_path: Path) -> None:
    async with started(server, tmp_path, workdir="/srv/work") as made:
        assert (await made.exec("pwd")).stdout == "/srv/work\n"


async def test_files_and_folders_keep_what_they_are(server: Server, tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    (source / "empty").mkdir(parents=True)
    (source / "run.sh").write_text("#!/bin/bash\necho ran\n")
    (source / "run.sh").chmod(0o755)
    (source / "link").symlink_to("run.sh")
    (source / "large").write_bytes(os.urandom(40 << 20))  # more than one piece, both ways
    async with started(server, tmp_path) as made:
        await made.upload_dir(source, "/app/deep/er")
        assert (await made.exec("/app/deep/er/link && [ -d /app/deep/er/empty ]")).stdout == "ran\n"
        await made.upload_file(source / "run.sh", "/opt/new/run -x.sh")
        assert (await made.exec("'/opt/new/run -x.sh'")).stdout == "ran\n"
        await made.exec("ln -s /etc/passwd /app/deep/er/out; mkfifo /app/deep/er/pipe", user="root")
        await made.download_dir("/app/deep/er", target)
        assert sorted(path.name for path in target.iterdir()) == ["empty", "large", "link", "run.sh"]
        assert (target / "large").read_bytes() == (source / "large").read_bytes()
        assert (target / "run.sh").stat().st_mode & 0o111
        await made.download_file("/app/README", tmp_path / "deep" / "README")
        assert (tmp_path / "deep" / "README").read_bytes() == b"Empty.\n"
        with pytest.raises(FileNotFoundError, match="there is no file /nothing"):
            await made.download_file("/nothing", tmp_path / "nothing")
        with pytest.raises(RuntimeError, match="/nothing could not be packed"):
            await made.download_dir("/nothing", target)
        assert (await made.exec("ls -A /tmp", user="root")).stdout == ""


async def test_what_programs_of_an_agent_say_of_files_is_bounded(server: Server, tmp_path: Path) -> None:
    (tmp_path / "packed.tar.gz").write_bytes(gzip.compress(bytes(1 << 20)))
    async with started(server, tmp_path) as made:
        await made.upload_file(tmp_path / "packed.tar.gz", "/app/packed")
        for program, says, problem in (("tar", "cat /app/packed > $2", "checksum"), ("wc", "echo much >&2", "'much'")):
            await made.exec(f"rm /usr/bin/{program}; echo '#!/usr/bin/bash' > /usr/bin/{program}", user="root")
            await made.exec(f"echo '{says}' >> /usr/bin/{program}; chmod 755 /usr/bin/{program}", user="root")
            with pytest.raises((tarfile.ReadError, OSError), match=problem):
                await made.download_dir("/app", tmp_path / "target")
        await made.exec(f"echo 'echo {1 << 40} >&2; exit' > /usr/bin/wc", user="root")
        with pytest.raises(OSError, match=f"README has {1 << 40} bytes, more than"):
            await made.download_file("/app/README", tmp_path / "README")
    assert not (tmp_path / "target").exists() or not list((tmp_path / "target").iterdir())


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"policy": NetworkPolicy()}, "a sandbox has no network"),
        ({"gpus": 1}, "does not support GPU"),
        ({"os": "windows"}, "Windows"),
        ({"cpus": 0.5}, "whole CPU"),
        (
            {"policy": NetworkPolicy(network_mode=NetworkMode.ALLOWLIST, allowed_hosts=["pypi.org"])},
            "'allowlist' is not supported",
        ),
        (
            {"memory_enforcement_policy": ResourceMode.REQUEST, "memory_mb": 64},
            "does not support memory resource requests",
        ),
    ],
)
def test_what_a_sandbox_does_not_have_is_refused(
    server: Server, tmp_path: Path, settings: dict[str, Any], problem: str
) -> None:
    with pytest.raises((ValueError, RuntimeError), match=problem):
        environment(server, tmp_path, **settings)
    assert environment(server, tmp_path, policy=NetworkPolicy(), offline=True).capabilities.disable_internet


async def test_composed_services_and_builds_are_refused(server: Server, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="builds no images"):
        await environment(server, tmp_path).start(force_build=True)
    (tmp_path / "environment" / "docker-compose.yaml").write_text("services: {}\n")
    with pytest.raises(ValueError, match=r"has a docker-compose\.yaml"):
        environment(server, tmp_path)


def test_the_image_is_the_tasks_or_the_one_that_is_asked_for(server: Server, tmp_path: Path) -> None:
    assert environment(server, tmp_path).image == "plain"
    assert environment(server, tmp_path, docker_image="a/b:1").image == "a/b:1"
    assert (
        environment(server, tmp_path, docker_image="a/b:1", image="docker://{docker_image}").image == "docker://a/b:1"
    )
    assert environment(server, tmp_path, image="tasks/{name}:2").image == "tasks/plain:2"


async def test_failures_of_ours_are_errors_and_no_results(server: Server, tmp_path: Path) -> None:
    async with started(server, tmp_path) as lost, ExecutorClient(server.target) as client:
        running = asyncio.create_task(lost.exec("sleep 60"))
        while not (sessions := await client.list_sessions(owner="plain__abc__env"))[0].busy:
            await asyncio.sleep(0.05)
        await client.delete_session(sessions[0].session_id)
        with pytest.raises((SandboxLost, NotFound), match="was deleted"):
            await running
    with pytest.raises(NotFound, match="no image 'nowhere'"):
        await environment(server, tmp_path, image="nowhere").start(force_build=False)
    with pytest.raises(InvalidRequest, match="memory_bytes"):
        await environment(server, tmp_path, memory_mb=1 << 30).start(force_build=False)
    away = environment(server, tmp_path)
    away.options.executor = "127.0.0.1:1"
    with pytest.raises(ExecutorUnavailable):
        await away.start(force_build=False)


async def test_the_memory_of_a_task_is_its_sandboxes_limit(server: Server, tmp_path: Path) -> None:
    async with started(server, tmp_path, memory_mb=64) as made:
        result = await made.exec("x=$(head -c 200000000 /dev/zero | tr '\\0' a); echo $x")
        if result.return_code == 127:
            pytest.fail(result.stderr)
        assert (result.return_code, "of memory" in result.stderr) == (137, True)
