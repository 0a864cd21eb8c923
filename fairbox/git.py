"""Runs git: no hooks, no prompts, no background work, and no process of it left over.

`git` waits for the command, `git_async` lets the event loop run and may be cancelled. By default a command sees no
configuration but the repository's. `users=True` is for other hosts, whose proxies and credentials are in the user's
configuration, and for repositories of others, which the user may have declared safe there.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from fairbox.errors import FairboxError

_MOST_WORDS = 500
"""Characters of git's own words that are passed on."""
_CONFIG = {
    "core.hooksPath": "/dev/null",
    "core.fsmonitor": "false",
    "core.attributesFile": "/dev/null",
    "core.autocrlf": "false",
    "core.fsync": "all",
    "core.logAllRefUpdates": "false",
    "core.quotePath": "false",
    "apply.ignoreWhitespace": "no",
    "apply.whitespace": "nowarn",
    "gc.auto": "0",
    "maintenance.auto": "false",
    # Always packs, which appear whole or not at all.
    "fetch.unpackLimit": "1",
    "fetch.recurseSubmodules": "false",
    "fetch.writeCommitGraph": "false",
    # A server that sends nothing more is given up long before the deadline of a large repository.
    "http.lowSpeedLimit": "1000",
    "http.lowSpeedTime": "60",
    "pack.threads": "1",
    "protocol.version": "2",
}


class GitError(FairboxError):
    """A git command failed. The text has the command and the end of what git said."""


def git(
    repository: Path,
    *words: str,
    stdin: bytes = b"",
    env: Mapping[str, str] | None = None,
    users: bool = False,
    with_stderr: bool = False,
    timeout_s: float = 120.0,
) -> bytes:
    """Runs a command in a repository, bare or not, and returns what it writes. Raises GitError, also at the timeout."""
    errors = subprocess.STDOUT if with_stderr else subprocess.PIPE
    command, environment = _command(repository, words), _environment(repository, users) | dict(env or {})
    try:
        done = subprocess.run(  # noqa: S603 - no shell
            command, input=stdin, stdout=subprocess.PIPE, stderr=errors, check=False, timeout=timeout_s, env=environment
        )
    except FileNotFoundError:
        raise GitError("git is not installed, or not on PATH") from None
    except subprocess.TimeoutExpired:
        raise GitError(f"git {words[0]} took longer than {timeout_s:g} s") from None
    return _checked(words, done.returncode, done.stdout, done.stdout if with_stderr else done.stderr)


async def git_async(
    repository: Path, *words: str, stdin: bytes = b"", env: Mapping[str, str] | None = None, users: bool = False
) -> bytes:
    """As `git`. When it fails or is cancelled, git and all that it has started are killed."""
    try:
        process = await asyncio.create_subprocess_exec(
            *_command(repository, words),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=_environment(repository, users) | dict(env or {}),
            start_new_session=True,
        )
    except FileNotFoundError:
        raise GitError("git is not installed, or not on PATH") from None
    try:
        out, said = await process.communicate(stdin)
    finally:
        if process.returncode != 0:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    assert process.returncode is not None
    return _checked(words, process.returncode, out, said)


def _command(repository: Path, words: Sequence[str]) -> list[str]:
    settings = [word for name, value in _CONFIG.items() for word in ("-c", f"{name}={value}")]
    return ["git", "--no-pager", "--no-replace-objects", "-C", str(repository), *settings, *words]


def _environment(repository: Path, users: bool) -> dict[str, str]:
    """The user's own without what would point git to another repository, or next to nothing."""
    if users:
        names = [name for name in os.environ if not name.startswith("GIT_")]
        names += [name for name in ("GIT_SSL_CAINFO", "GIT_PROXY_SSL_CAINFO") if name in os.environ]
        mine = {name: os.environ[name] for name in names} | {"GIT_ALLOW_PROTOCOL": "file:https:http"}
    else:
        mine = {"PATH": os.environ.get("PATH", os.defpath), "HOME": "/nonexistent"}
        mine |= {"GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull, "GIT_ATTR_NOSYSTEM": "1"}
        mine |= {"GIT_ALLOW_PROTOCOL": "none", "GIT_NO_LAZY_FETCH": "1"}
    mine |= {"LC_ALL": "C", "GIT_TERMINAL_PROMPT": "0", "GIT_ASKPASS": "", "SSH_ASKPASS": ""}
    # A folder that is no repository is not taken for a part of one above it.
    return mine | {"GIT_CEILING_DIRECTORIES": str(repository.absolute().parent)}


def _checked(words: Sequence[str], code: int, out: bytes, said: bytes) -> bytes:
    if code:
        text = " ".join(said.decode("utf-8", "replace").split())[-_MOST_WORDS:]
        raise GitError(f"git {words[0]}: {text or f'ended with {code}'}")
    return out
