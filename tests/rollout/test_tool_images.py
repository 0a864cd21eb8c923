"""The bash tool in a task's image: each command afresh, or one shell for a trajectory."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from unittest import mock

import pytest
import pytest_asyncio

from rollout.cli import main
from rollout.stack import LocalStack
from rollout.tools import InfraError, ToolOutcome
from rollout.tools.code.bash import BashConfig, BashTool
from tests.executor.images.archives import Entry, host_layer, layer, layout_files, write_folder
from tests.executor.images.registry import Registry
from tests.rollout.services import executor_status, nothing_left

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("images")
    base = host_layer("bash", "cat", "sleep")
    for name in ("one", "two"):
        layers = [base, layer(Entry("srv/name", name.encode()))]
        archive = write_folder(folder / name, layout_files(layers, name=name, WorkingDir="/srv"))
        assert main(["image", "add", str(archive), "--dir", str(folder / "store")]) == 0
    return folder / "store"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(store: Path) -> AsyncIterator[LocalStack]:
    args = ["buckets.code.max_in_flight=3"]
    async with LocalStack(limiter_args=args, executor_args=[f"image_dir={store}"]) as stack:
        if not (await executor_status(stack)).HasField("images"):
            pytest.skip("nothing is mounted at this level")
        yield stack


def tool(stack: LocalStack, mode: str) -> BashTool:
    return BashTool(
        BashConfig(mode=mode, default_timeout=20.0), executor=stack.ports.executor, limiter=stack.ports.limiter
    )


async def said(bash: BashTool, trajectory: str, command: str) -> str:
    return (await bash.execute(trajectory, {"command": command})).text


async def test_commands_run_in_the_image_of_their_task(stack: LocalStack) -> None:
    async with tool(stack, "program") as bash:
        await asyncio.gather(*(bash.create(name, image=name) for name in ("one", "two")))
        await bash.branch("one", ["branch"])
        for name in ("one", "two"):
            assert await said(bash, name, "pwd; cat name; echo changed > name") == f"/srv\n{name}"
            assert await said(bash, name, "cat name") == name
        assert await said(bash, "branch", "cat name") == "one"
        await asyncio.gather(*(bash.release(name) for name in ("one", "two", "branch")))
    await nothing_left(stack)


async def test_a_shell_lives_in_the_image_of_its_task(stack: LocalStack) -> None:
    async with tool(stack, "shell") as bash:
        await asyncio.gather(*(bash.create(name, image=name) for name in ("one", "two")))
        for name in ("one", "two"):
            assert await said(bash, name, "x=$(cat name); echo changed > name; cd /tmp") == "[no output]"
            assert await said(bash, name, "pwd; echo $x; cat /srv/name") == f"/tmp\n{name}\nchanged"
        await asyncio.gather(*(bash.release(name) for name in ("one", "two")))
    await nothing_left(stack)


async def test_images_that_are_not_there_are_not_the_models_fault(stack: LocalStack) -> None:
    for mode in ("program", "shell"):
        async with tool(stack, mode) as bash:
            await bash.create("t", image="three")
            with pytest.raises(InfraError, match="no image 'three'"):
                await bash.execute("t", {"command": "true"})
    async with tool(stack, "session") as bash:
        with pytest.raises(InfraError, match="the task's image is 'one', must be a name, without a workspace or mode"):
            await bash.create("t", image="one")


@pytest.mark.parametrize("mode", ["program", "shell"])
async def test_variables_and_memory_are_the_tasks_to_say(stack: LocalStack, mode: str) -> None:
    async with tool(stack, mode) as bash:
        await bash.create("t", image="one", env={"GIVEN": "by the task"}, memory_mb=100)
        assert await said(bash, "t", "echo $GIVEN") == "by the task"
        large = await bash.execute("t", {"command": "x=$(printf '%*s' 200000000 '')"})
        assert large.outcome is ToolOutcome.RESOURCE_LIMIT
        for options, problem in (({"env": {"A": 1}}, "env is"), ({"memory_mb": 0}, "memory_mb is 0, must be a whole")):
            with pytest.raises(InfraError, match=problem):
                await bash.create("u", image="one", **options)
        await bash.release("t")
    await nothing_left(stack)


async def test_an_image_of_a_registry_is_fetched_before_the_first_command(tmp_path: Path) -> None:
    if shutil.which("skopeo") is None:
        pytest.skip("there is no skopeo")
    with Registry(layout_files([host_layer("bash", "cat"), layer(Entry("srv/name", b"one"))], name="x")) as registry:
        registry.trusted_in(tmp_path)
        words = [f"image_dir={tmp_path}/store", f"remotes=['docker://{registry.address}/']"]
        with mock.patch.dict(os.environ, {"HOME": str(tmp_path)}):
            async with LocalStack(limiter_args=["buckets.code.max_in_flight=3"], executor_args=words) as stack:
                if not (await executor_status(stack)).HasField("images"):
                    pytest.skip("nothing is mounted at this level")
                async with tool(stack, "shell") as bash:
                    for name in ("a", "b"):
                        await bash.create(name, image=f"docker://{registry.address}/own/image")
                        assert await said(bash, name, "cat /srv/name") == "one"
                        await bash.release(name)
                    assert registry.pulls == 3
                    with pytest.raises(InfraError, match=r"the task's image can't be had: .*own/other"):
                        await bash.create("c", image=f"docker://{registry.address}/own/other")
