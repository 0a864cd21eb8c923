"""A child process of the server, known by its pidfd: waited for without threads, and never left behind."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence

__all__ = ["Child", "wait_readable"]

_REAP_S = 10.0
"""A process that is to end does so at once; one that has not by then is killed."""


async def wait_readable(handle: int, timeout: float) -> bool:
    """Whether a descriptor could be read within `timeout` seconds; for a pidfd, whether its process has ended."""
    loop = asyncio.get_running_loop()
    done = loop.create_future()

    def ready() -> None:
        if not done.done():
            done.set_result(None)

    loop.add_reader(handle, ready)
    try:
        async with asyncio.timeout(timeout):
            await done
    except TimeoutError:
        return False
    finally:
        loop.remove_reader(handle)
    return True


class Child:
    """Starts a command with the given environment and descriptors, and nothing else. Closing it kills it."""

    def __init__(
        self, command: Sequence[str], *, stdout: int, stderr: int, passed: Sequence[int], env: Mapping[str, str]
    ) -> None:
        self._process = subprocess.Popen(  # noqa: S603
            command,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            pass_fds=passed,
            env=env,
            cwd="/",
            start_new_session=True,  # Ctrl-C in a terminal is for the server alone; it ends its runs in order
        )
        self._handle = os.pidfd_open(self._process.pid)

    async def wait(self) -> None:
        """Returns when it has ended. Only for one that was killed, or whose work is done."""
        while not await wait_readable(self._handle, _REAP_S):
            self.kill()
        self._process.wait()

    def kill(self) -> None:
        """Idempotent."""
        if self._process.returncode is None:
            signal.pidfd_send_signal(self._handle, signal.SIGKILL)

    def close(self) -> None:
        """After `wait()`."""
        os.close(self._handle)
