"""Many sessions in images leave nothing: no process, mount, layer or folder."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from executor_service import ExecutorClient, Outcome
from tests.executor.images.conftest import MOUNTING, Setting
from tests.executor.levels import STRONGEST
from tests.executor.servers import children, descriptors, running

AT_ONCE = 8
FIRST = [each for each in STRONGEST if each.values[0] in MOUNTING]
"""Levels, of which one alone is in every run: how many sessions there were matters there as it does elsewhere."""


def mounts(pid: int) -> int:
    return len(Path(f"/proc/{pid}/mountinfo").read_text(encoding="utf-8").splitlines())


async def left(setting: Setting) -> tuple[int, int, int]:
    """Processes below the server, its mounts, and layers of images, when nothing runs any more."""
    while setting.server.status().sessions:
        await asyncio.sleep(0.05)
    layers = sum(1 for _ in (setting.store / "layers").iterdir())
    return len(children(setting.server.pid)), mounts(setting.server.pid), layers


@pytest.mark.parametrize("setting", FIRST, indirect=True, scope="session")
@pytest.mark.parametrize("sessions", [100, pytest.param(10_000, marks=[pytest.mark.soak, pytest.mark.timeout(1800)])])
async def test_many_sessions_leave_nothing(setting: Setting, sessions: int) -> None:
    numbers = iter(range(sessions))

    async def work(client: ExecutorClient) -> None:
        for number in numbers:
            image = ("one", "two")[number % 2]
            async with client.session(language="bash", image=image) as session:
                result = await session.run(f"echo {number} > /srv/own; rm -r /srv/d; cat /srv/own & wait")
                assert (result.outcome, result.stdout.text) == (Outcome.FINISHED, f"{number}\n")
                if number % 50 == 0:
                    image = (await session.snapshot()).image
                    result = await client.execute("cat /srv/own", language="bash", image=image)
                    assert result.stdout.text == f"{number}\n"

    async with ExecutorClient(setting.server.target) as client:
        await asyncio.gather(*(client.execute("true", language="bash", image="one") for _ in range(AT_ONCE)))
        before, before_mounts, before_layers = await left(setting)
        before_handles = len(descriptors(setting.server.pid))
        await asyncio.gather(*(work(client) for _ in range(AT_ONCE)))
        processes, after_mounts, layers = await left(setting)
        while sessions > 1000 and processes > before + 2 * AT_ONCE:  # sandboxes wait a minute for more
            await asyncio.sleep(0.5)
            processes, _, _ = await left(setting)
        assert after_mounts == before_mounts
        assert layers == before_layers + sessions // 50
        assert len(descriptors(setting.server.pid)) <= before_handles + 20 * AT_ONCE  # those of waiting sandboxes
    assert not list((setting.store / "making").iterdir())


@pytest.mark.parametrize("setting", FIRST, indirect=True, scope="session")
async def test_images_that_are_used_once_keep_no_sandbox_from_others(setting: Setting) -> None:
    """Snapshots of what agents have left are such: here more of them than there may be sandboxes."""
    images = []
    with running(f"image_dir={setting.store}", "max_concurrent=1", "max_sessions=1") as server:
        async with ExecutorClient(server.target) as client:
            async with client.session(language="bash", image="one") as session:
                for number in range(20):
                    await session.run(f"echo {number} > /srv/own")
                    images.append((await session.snapshot()).image)
            for number, image in enumerate(images):
                result = await client.execute("cat /srv/own", language="bash", image=image)
                assert result.stdout.text == f"{number}\n", result
