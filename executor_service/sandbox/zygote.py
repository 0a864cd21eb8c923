"""A zygote process, seen from the server: started once for a profile, asked for boxes.

Invariants: it is started afresh, with the environment of programs and nothing of the server's; when it is closed, or
the server dies, every box and every program below it is dead.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import logging
import os
import signal
import socket
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from executor_service.cleanup import to_the_end
from executor_service.sandbox.host import MAIN_FILE, WORK_FOLDER, Host
from executor_service.sandbox.report import SandboxFailure, ZygoteEnded

_log = logging.getLogger(__name__)
_WARM_TIMEOUT_S = 180.0
"""Loading scientific packages takes seconds; minutes where the disk is cold and the machine busy."""
_ASKED_WITHIN_S = 60.0
"""A zygote forks some hundred boxes a second; a busy machine that is to fork a thousand at once takes ten seconds."""
_MAX_MESSAGE = 256 << 10
_MOST_SAID = 64 << 10
_ROOM_FOR_NAMES = 2048
"""Bytes of the command line that programs overwrite, so that `ps` shows theirs."""


async def wait_readable(handle: int, timeout: float) -> bool:
    """Says whether a descriptor could be read within `timeout` seconds; for a pidfd, whether its process has ended."""
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


async def _wait_writable(handle: int) -> None:
    loop = asyncio.get_running_loop()
    done = asyncio.Event()
    loop.add_writer(handle, done.set)
    try:
        await done.wait()
    finally:
        loop.remove_writer(handle)


@dataclass(frozen=True, slots=True)
class Profile:
    """Packages that programs find loaded."""

    name: str
    packages: tuple[str, ...] = ()
    lean: bool = False
    """True to load not even the common modules of the standard library, nor the code that serves cells."""
    ahead: bool = True
    """True to load it when the server starts; False: when it is first wanted."""


class Zygote:
    """`async with Zygote(host, profile, env) as zygote: zygote.open_box(...)`."""

    def __init__(self, host: Host, profile: Profile, env: Mapping[str, str]) -> None:
        self.profile = profile
        self.missing: tuple[str, ...] = ()
        """Packages that are not installed."""
        self._host = host
        self._env = env
        self._process: asyncio.subprocess.Process | None = None
        self._inner = -1
        self._said = -1
        self._control: socket.socket | None = None
        self._asking = asyncio.Lock()
        """Held by the one request for a box that waits for room in the socket."""

    async def __aenter__(self) -> Zygote:
        try:
            async with asyncio.timeout(_WARM_TIMEOUT_S):
                await self._start()
        except TimeoutError:
            await to_the_end(self._close())
            failure = f"profile {self.profile.name!r} was not loaded within {_WARM_TIMEOUT_S:g} s"
            raise SandboxFailure("zygote", 0, failure, started=False) from None
        except BaseException:
            await to_the_end(self._close())
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await to_the_end(self._close())

    async def open_box(self, spec: Mapping[str, Any], leases: int) -> socket.socket:
        """Asks for a box, whose init reads the page of leases by the descriptor `leases`, and answers on the socket
        that is returned. Waits if the zygote has more requests than its socket takes."""
        with contextlib.ExitStack() as stack:
            try:
                ours, theirs = map(stack.enter_context, socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET))
            except OSError as error:
                raise SandboxFailure("zygote", error.errno or 0, str(error), started=False) from None
            ours.setblocking(False)
            try:
                async with asyncio.timeout(_ASKED_WITHIN_S), self._asking:
                    await self._ask(json.dumps(spec).encode(), [theirs.fileno(), leases])
            except TimeoutError:
                said = f"it took no request for a box within {_ASKED_WITHIN_S:g} s"
                raise SandboxFailure("zygote", errno.ETIMEDOUT, said, started=False) from None
            except OSError as error:
                raise ZygoteEnded("zygote", error.errno or 0, f"it has ended: {error}", started=False) from None
            theirs.close()
            stack.pop_all()
        return ours

    async def _ask(self, request: bytes, handles: list[int]) -> None:
        assert self._control is not None
        while True:
            try:
                socket.send_fds(self._control, [request], handles)
                return
            except BlockingIOError:
                await _wait_writable(self._control.fileno())

    async def ended(self) -> None:
        """Returns when the zygote has died by itself."""
        while not await wait_readable(self._inner, 3600.0):
            pass

    async def _start(self) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control.setblocking(False)
        self._said, writer = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._said, False)
        mode = ("bare-" if self._host.bare else "") + ("root" if self._host.privileged else "user")
        command = [*self._host.zygote, str(theirs.fileno()), mode, " " * _ROOM_FOR_NAMES]
        try:
            self._process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=writer,
                stderr=writer,
                pass_fds=[theirs.fileno()],
                env=self._env,
                cwd="/",
                start_new_session=True,  # Ctrl-C in a terminal is for the server alone; it ends its runs in order
            )
        except OSError as error:
            raise SandboxFailure("zygote", error.errno or 0, str(error), started=False) from None
        finally:
            os.close(writer)
            theirs.close()
        await self._expect("started")
        with tempfile.TemporaryDirectory(prefix="fairbox-zygote-", ignore_cleanup_errors=True) as folder:
            head = {
                "packages": list(self.profile.packages),
                "lean": self.profile.lean,
                "folder": folder,
                "work": WORK_FOLDER,
                "main": MAIN_FILE,
                "seccomp": self._host.seccomp.hex(),
            }
            self._control.send(json.dumps(head).encode())
            answer = await self._expect("warm")
        self.missing = tuple(answer["missing"])
        asyncio.get_running_loop().add_reader(self._said, self._listen)

    async def _expect(self, kind: str) -> dict[str, Any]:
        assert self._control is not None
        while True:
            if not await wait_readable(self._control.fileno(), _WARM_TIMEOUT_S):
                raise TimeoutError
            data, handles, _, _ = socket.recv_fds(self._control, _MAX_MESSAGE, 1, socket.MSG_CMSG_CLOEXEC)
            if handles:
                self._inner = handles[0]
            if not data:
                raise SandboxFailure("zygote", 0, self._last_words() or "it ended without a word", started=False)
            answer: dict[str, Any] = json.loads(data)
            if answer["type"] == "failed":
                raise SandboxFailure(answer["stage"], answer["errno"], answer["error"], started=False)
            if answer["type"] == kind:
                if self._inner < 0:  # the kernel drops a descriptor that is one too many, and says nothing
                    raise SandboxFailure("zygote", errno.EMFILE, os.strerror(errno.EMFILE), started=False)
                return answer

    def _last_words(self) -> str:
        with contextlib.suppress(OSError):
            lines = os.read(self._said, 65536).decode(errors="replace").strip().splitlines()
            return lines[-1] if lines else ""
        return ""

    def _listen(self) -> None:
        """Logs what the zygote and the inits of its boxes say; programs have other descriptors."""
        try:
            said = os.read(self._said, _MOST_SAID)
        except BlockingIOError:
            return
        if not said:
            asyncio.get_running_loop().remove_reader(self._said)
        for line in said.decode(errors="replace").splitlines():
            _log.error("zygote %s: %s", self.profile.name, line)

    async def _close(self) -> None:
        if self._inner >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._inner, signal.SIGKILL)
            while not await wait_readable(self._inner, 30.0):
                _log.error("zygote %s: its processes are still not dead", self.profile.name)
            os.close(self._inner)
            self._inner = -1
        if self._process is not None:
            # Not `kill()` of asyncio's: it reaps a process that has just ended, and asyncio then waits for it in vain.
            if self._process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self._process.pid, signal.SIGKILL)
            await self._process.wait()
            self._process = None
        if self._said >= 0:
            asyncio.get_running_loop().remove_reader(self._said)
            os.close(self._said)
            self._said = -1
        if self._control is not None:
            self._control.close()
