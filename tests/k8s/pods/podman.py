"""podman, as far as the rig uses it: words in, results out. Containers bear the rig's label, and go by it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from tests.k8s.pods.commands import CommandError, run

__all__ = ["PAUSE", "Podman", "unusable"]

PAUSE = ("sleep", "infinity")
"""The program of a pod's sandbox, from the image of the pod's container. It holds the namespaces and does nothing."""
_LABEL = "fairbox-rig"
_CONFIG = Path(__file__).with_name("containers.conf")


def unusable(images: Sequence[str]) -> str:
    """Why the rig can't run here; empty: it can."""
    if os.geteuid() != 0:
        return "pods have networks and user namespaces of their own, which takes root"
    missing = [each for each in ("podman", "runc", "ip", "nft", "nsenter") if shutil.which(each) is None]
    if missing:
        return f"{', '.join(missing)} not installed"
    os.environ.setdefault("CONTAINERS_CONF", str(_CONFIG))
    for image in images:
        if os.system(f"podman image exists {image} 2>/dev/null") != 0:
            return f"image {image} is not there: make images"
    return ""


class Podman:
    """The containers of one rig."""

    def __init__(self, rig: str) -> None:
        self._rig = rig
        os.environ.setdefault("CONTAINERS_CONF", str(_CONFIG))

    async def start(self, name: str, image: str, options: Sequence[str], command: Sequence[str]) -> None:
        """Starts a container; it is there, not ready, when this returns."""
        head = ["podman", "run", "--detach", "--name", name, "--label", f"{_LABEL}={self._rig}", "--pull", "never"]
        await run(*head, *options, image, *command)

    async def pid(self, name: str) -> int:
        """The first process of a container, as the machine numbers it."""
        return int(await run("podman", "inspect", name, "--format", "{{.State.Pid}}"))

    async def exit_code(self, name: str) -> int:
        """Waits for its end. Cancel it to stop waiting."""
        process = await asyncio.create_subprocess_exec(
            "podman",
            "wait",
            "--interval",
            "100ms",
            name,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            out, _ = await process.communicate()
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
        return int(out or b"-1")

    async def signal(self, name: str, signal: str) -> None:
        """Does nothing where it has ended."""
        with contextlib.suppress(CommandError):
            await run("podman", "kill", "--signal", signal, name)

    async def logs(self, name: str) -> str:
        """What it has written so far."""
        with contextlib.suppress(CommandError):
            return await run("sh", "-c", 'podman logs "$1" 2>&1', "sh", name)
        return ""

    async def facts(self, name: str) -> dict[str, object]:
        """What podman knows of it."""
        (found,) = json.loads(await run("podman", "inspect", name))
        assert isinstance(found, dict)
        return found

    async def execute(self, name: str, *words: str, within_s: float = 60.0) -> str:
        """Runs a command inside."""
        return await run("podman", "exec", name, *words, within_s=within_s)

    async def remove(self, *names: str) -> None:
        """Kills them, where they run. Idempotent."""
        if names:
            await run("podman", "rm", "--force", "--ignore", "--time", "0", *names)

    async def remove_all(self) -> None:
        """Those of this rig, also of one that was killed. Containers whose namespaces others use go last."""
        listed = await run("podman", "ps", "-a", "--filter", f"label={_LABEL}={self._rig}", "--format", "{{.Names}}")
        names = sorted(listed.split(), key=lambda name: name.endswith(".sandbox"))
        await self.remove(*(name for name in names if not name.endswith(".sandbox")))
        await self.remove(*(name for name in names if name.endswith(".sandbox")))
