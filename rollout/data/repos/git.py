"""Runs git for the store of repositories, without blocking the loop.

Invariants: every git and all that it starts is a process group that is dead when the call returns, raises or is
cancelled, and dies with this process where the system can do that; no hooks, no prompts, no background work. Only
`fetch` sees the user's own configuration, because proxies and credentials are there; nothing else may depend on it.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import shutil
import signal
import subprocess
from collections.abc import AsyncIterable, Callable, Mapping, Sequence
from pathlib import Path

from fairbox.errors import FairboxError
from rollout.cleanup import to_its_end

__all__ = ["Git", "GitFailed"]

_MOST_WORDS = 500
"""Characters of git's own words that are passed on."""
_MOST_OUTPUT = 256 << 20
"""Bytes of output that are held: a listing of a tree of some million files."""
_CONFIG = {
    "core.hooksPath": "/dev/null",
    "core.fsmonitor": "false",
    "core.attributesFile": "/dev/null",
    "core.autocrlf": "false",
    "core.fsync": "all",
    "core.logAllRefUpdates": "false",
    "gc.auto": "0",
    "maintenance.auto": "false",
    # Always packs, which appear whole or not at all.
    "fetch.unpackLimit": "1",
    "fastimport.unpackLimit": "1",
    "fetch.recurseSubmodules": "false",
    "fetch.writeCommitGraph": "false",
    # A server that sends nothing more is given up long before the deadline of a large repository.
    "http.lowSpeedLimit": "1000",
    "http.lowSpeedTime": "60",
    "pack.threads": "1",
    "protocol.version": "2",
}


class GitFailed(Exception):  # noqa: N818 - a fact about a process
    """A git command failed; the text is the end of what it said."""


class Git:
    """The git that is on PATH."""

    def __init__(self) -> None:
        program = shutil.which("git")
        if program is None:
            raise FairboxError("git is not installed, or not on PATH")
        self._program = program

    async def run(
        self,
        repository: Path,
        *words: str,
        stdin: bytes | AsyncIterable[bytes] = b"",
        env: Mapping[str, str] | None = None,
        remote: bool = False,
        problem: Callable[[], str | None] | None = None,
    ) -> bytes:
        """What a command writes to stdout. GitFailed when it fails.

        `remote`: it may talk to other hosts. `problem` is asked while the command runs, twice a second, and after it; a
        text ends it, and is the failure's.
        """
        settings = [word for name, value in _CONFIG.items() for word in ("-c", f"{name}={value}")]
        process = await asyncio.create_subprocess_exec(
            *(*_to_die_with_us(), self._program, "--no-pager", f"--git-dir={repository}", *settings, *words),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=_environment(remote) | dict(env or {}),
            cwd=repository,
            start_new_session=True,
        )
        whole = False
        try:
            out, said = await _talk(process, stdin, problem)
            whole = True
        finally:
            if not whole or process.returncode != 0:
                await to_its_end(_end(process))
        if problem is not None and (text := await asyncio.to_thread(problem)) is not None:
            raise GitFailed(text)
        if process.returncode:
            raise GitFailed(_sentence(words, process.returncode, said))
        return out


@functools.cache
def _to_die_with_us() -> tuple[str, ...]:
    """What makes a command end when this process is killed; nothing where the system does not have it.

    Not by a function between fork and exec: a process with threads, of gRPC above all, must not run Python there.
    """
    words = ("setpriv", "--pdeathsig", "KILL")
    try:
        done = subprocess.run([*words, "true"], capture_output=True, timeout=10, check=False)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):
        return ()
    return words if done.returncode == 0 else ()


def _environment(remote: bool) -> dict[str, str]:
    """For a command that talks to others the user's own, without what would point git to another repository."""
    if not remote:
        mine = {"PATH": os.environ.get("PATH", os.defpath), "HOME": "/nonexistent"}
        mine |= {"GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull, "GIT_ATTR_NOSYSTEM": "1"}
    else:
        mine = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
        mine |= {name: os.environ[name] for name in ("GIT_SSL_CAINFO", "GIT_PROXY_SSL_CAINFO") if name in os.environ}
    allowed = "file:https:http" if remote else "none"
    words = {"LC_ALL": "C", "GIT_TERMINAL_PROMPT": "0", "GIT_ASKPASS": "", "SSH_ASKPASS": ""}
    return mine | words | {"GIT_ALLOW_PROTOCOL": allowed, "GIT_NO_REPLACE_OBJECTS": "1", "GIT_NO_LAZY_FETCH": "1"}


async def _talk(
    process: asyncio.subprocess.Process,
    stdin: bytes | AsyncIterable[bytes],
    problem: Callable[[], str | None] | None,
) -> tuple[bytes, bytes]:
    assert process.stdout is not None
    assert process.stderr is not None
    async with asyncio.TaskGroup() as tasks:
        watch = None if problem is None else tasks.create_task(_watch(process, problem))
        feeding = tasks.create_task(_feed(process, stdin))
        out = tasks.create_task(_read(process.stdout, _MOST_OUTPUT))
        said = tasks.create_task(_read(process.stderr, 1 << 20))
        await asyncio.wait([out, said])
        await process.wait()
        feeding.cancel()
        if watch is not None:
            watch.cancel()
    if watch is not None and not watch.cancelled() and (text := watch.result()) is not None:
        raise GitFailed(text)
    if feeding.done() and not feeding.cancelled() and (failure := feeding.result()) is not None:
        raise failure
    return out.result(), said.result()


async def _feed(process: asyncio.subprocess.Process, stdin: bytes | AsyncIterable[bytes]) -> Exception | None:
    """Writes the input. An exception of the input itself ends the command and is given back."""
    assert process.stdin is not None
    failure = None
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # what it ended for, it says itself
        try:
            if isinstance(stdin, bytes):
                process.stdin.write(stdin)
            else:
                async for piece in stdin:
                    process.stdin.write(piece)
                    await process.stdin.drain()
            await process.stdin.drain()
        except (FairboxError, OSError) as error:
            if isinstance(error, BrokenPipeError | ConnectionResetError):
                raise
            failure = error
            _kill(process)
    process.stdin.close()
    return failure


async def _read(stream: asyncio.StreamReader, most: int) -> bytes:
    """All of it, of which the first `most` bytes are kept: the rest is read, so that nobody waits."""
    kept = bytearray()
    while piece := await stream.read(1 << 16):
        kept += piece[: max(0, most - len(kept))]
    return bytes(kept)


async def _watch(process: asyncio.subprocess.Process, problem: Callable[[], str | None]) -> str | None:
    while True:
        if (text := await asyncio.to_thread(problem)) is not None:
            _kill(process)
            return text
        await asyncio.sleep(0.5)


def _kill(process: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


async def _end(process: asyncio.subprocess.Process) -> None:
    """One that has ended well has waited for all that it had started. Of any other the rest of its group may live."""
    _kill(process)
    await process.wait()


def _sentence(words: Sequence[str], code: int, said: bytes) -> str:
    text = " ".join(said.decode("utf-8", "replace").split())[-_MOST_WORDS:]
    return f"git {words[0]}: {text or f'ended with {code}'}"
