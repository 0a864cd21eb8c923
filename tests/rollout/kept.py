"""Processes of ours that are killed and started again, as what runs them in a cluster does."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]


async def listens(address: str) -> None:
    """Returns when somebody does."""
    host, _, port = address.rpartition(":")
    while True:
        with contextlib.suppress(OSError):
            _, writer = await asyncio.open_connection(host, int(port))
            writer.close()
            return
        await asyncio.sleep(0.1)


class KeptProcess:
    """`async with KeptProcess(words).kept() as process`. It is started again unless it ends by itself, with 0."""

    def __init__(self, words: Sequence[str], env: Mapping[str, str] | None = None) -> None:
        self._words = words
        self._env = os.environ | (env or {})
        self._process: asyncio.subprocess.Process | None = None
        self.failures: list[int] = []
        """Exit codes other than those of what was killed."""

    @contextlib.asynccontextmanager
    async def kept(self) -> AsyncIterator[asyncio.Task[None]]:
        """The task ends when the process has ended with 0, or with another code for the third time."""
        keeping = asyncio.create_task(self._keep())
        try:
            yield keeping
        finally:
            keeping.cancel()
            await asyncio.wait([keeping])

    def kill(self) -> bool:
        """SIGKILL; False: it does not run."""
        if self._process is None or self._process.returncode is not None:
            return False
        self._process.kill()
        return True

    async def _keep(self) -> None:
        code: int | None = None
        try:
            while code != 0 and len(self.failures) < 3:
                self._process = await asyncio.create_subprocess_exec(*self._words, cwd=ROOT, env=self._env)
                code = await self._process.wait()
                if code not in (0, -signal.SIGKILL):
                    self.failures.append(code)
        finally:
            if self.kill():
                assert self._process is not None
                await self._process.wait()
