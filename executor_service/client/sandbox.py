"""A shell session as other frameworks want a sandbox: commands to their end, files of any size.

Invariants: what a command does is its result; what fairbox fails to do is an exception and never a result; a call that
is cancelled ends what it has started; no command is run twice. An executor that is full is asked again for a while.
"""

from __future__ import annotations

import asyncio
import errno
import io
import logging
import shlex
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import replace
from typing import BinaryIO, Self, TypeVar

from executor_service.client.client import ExecutorClient
from executor_service.client.sessions import Session
from executor_service.errors import ExecutorError, Overloaded, SessionBusy
from executor_service.model import Cause, ExecutionResult, InputFile, Limits, Outcome
from fairbox.errors import FairboxError

T = TypeVar("T")
_log = logging.getLogger(__name__)
_IDLE_TTL_S = 3600.0
"""A session lives for so long without a command: longer than a model thinks; those of a program that was killed go by
then."""
_RETRY_S = 300.0
"""Seconds in which an executor that is full is asked again."""
_LAST_CALL_S = 10.0
"""Seconds that the end of a session may take."""
_COMMAND_BYTES = 100_000
"""Larger commands are put into a file: Linux allows one argument 128 KiB."""
_PIECE = 32 << 20
"""Bytes of a file that are written at once; standard input takes up to 64 MiB."""
_SHORT_S = 120.0
"""Seconds in which a piece of a file is read or written."""
_SIZE_DIGITS = 20
"""Digits of the size of a file, which a program of the image says."""
_DIRECTORY, _MISSING, _DENIED = 121, 122, 123
"""Exit codes of the scripts below."""
_READ = f"""[ -d "$1" ] && exit {_DIRECTORY}; [ -e "$1" ] || exit {_MISSING}; [ -r "$1" ] || exit {_DENIED}
wc -c < "$1" >&2; tail -c "+$2" "$1" | head -c "$3"
"""
_WRITE = f"""[ -d "$1" ] && exit {_DIRECTORY}
folder=.; case "$1" in */*) folder="${{1%/*}}/"; mkdir -p -- "$folder" || exit {_DENIED};; esac
if [ -e "$1" ]; then [ -w "$1" ]; else [ -w "$folder" ]; fi || exit {_DENIED}
if [ "$2" = 0 ]; then cat > "$1"; else cat >> "$1"; fi
"""


class SandboxLost(FairboxError):
    """fairbox did not run a command to its end, and the command had no part in it."""


class ShellSandbox:
    """A sandbox of its own, made by `start` and ended by `close`. Relative paths are below the folder that its shell
    begins in."""

    def __init__(self, client: ExecutorClient, session: Session, most: Limits) -> None:
        self._client = client
        self._session = session
        self.most = most
        """Most that the executor allows a command."""

    @classmethod
    async def start(
        cls,
        executor: str,
        *,
        image: str = "",
        user: str = "",
        env: Mapping[str, str] | None = None,
        owner: str = "",
        limits: Limits | None = None,
    ) -> Self:
        """Makes the session. `image`: with `docker://` before it, it is fetched if the executor may. `limits`: those of
        the whole sandbox. Arguments and errors else as for `ExecutorClient.create_session`."""
        client = ExecutorClient(executor)
        await client.__aenter__()
        try:
            most = next(iter((await client.status()).values())).max_limits
            if image.startswith("docker://"):
                await client.prepare_image(image)
            bounds = replace(limits or Limits(), wall_time_s=most.wall_time_s)
            info = await _patiently(
                lambda: client.create_session(
                    language="bash",
                    image=image.removeprefix("docker://"),
                    user=user,
                    env=env,
                    owner=owner[:128],
                    idle_ttl_s=_IDLE_TTL_S,
                    limits=bounds,
                )
            )
        except BaseException:
            await client.__aexit__(None, None, None)
            raise
        found = Limits(wall_time_s=most.wall_time_s, output_bytes=most.output_bytes)
        return cls(client, Session(client, info), found)

    async def close(self, *, keep: bool = False) -> None:
        """Ends the session, or leaves it to its idle time."""
        try:
            if not keep:
                await self._client.delete_session(self._session.session_id, timeout=_LAST_CALL_S)
        except ExecutorError as error:  # whoever closes it has what it wanted
            _log.warning("a sandbox could not be ended, and lives for its idle time: %s", error)
        finally:
            await self._client.__aexit__(None, None, None)

    async def run(
        self,
        command: str,
        data: bytes = b"",
        *,
        env: Mapping[str, str] | None = None,
        user: str = "",
        timeout: float | None = None,
        output_bytes: int = 0,
    ) -> ExecutionResult:
        """Runs a command of a shell with `data` as its standard input, beside others.

        `timeout`, seconds; None: the most that the executor allows. `output_bytes`: 0 is the executor's default. Raises
        SandboxLost, SessionNotFound (of cause POLICY if what ran has ended the session) and other ExecutorErrors.
        """
        files = []
        if len(command.encode()) > _COMMAND_BYTES:
            name = f".command-{uuid.uuid4().hex}"
            files.append(InputFile(name, command.encode()))
            command = f'file=/sandbox/{name}; eval "$(cat $file; rm $file)"'
        limits = Limits(wall_time_s=timeout or self.most.wall_time_s, output_bytes=output_bytes)
        result = await _patiently(
            lambda: self._session.run(command, beside=True, stdin=data, env=env, user=user, files=files, limits=limits)
        )
        if result.cause is Cause.INFRA:
            raise SandboxLost(result.message)
        return result

    async def write(self, file: str, content: bytes | BinaryIO, *, user: str = "") -> None:
        """Writes a file, and the folders above it. Raises as `run`, and TimeoutError, PermissionError,
        IsADirectoryError and OSError."""
        source = io.BytesIO(content) if isinstance(content, bytes) else content
        start = 0
        while (piece := await asyncio.to_thread(source.read, _PIECE)) or not start:
            result = await self.run(_script(_WRITE, file, str(start)), piece, user=user, timeout=_SHORT_S)
            if result.exit_code:
                raise _file_error(file, result)
            start += len(piece)
            if not piece:
                break

    async def read(self, file: str, *, most_bytes: int, user: str = "") -> AsyncIterator[bytes]:
        """Its pieces. Raises as `write`, FileNotFoundError, and OSError of EFBIG for a file that is larger, or that the
        sandbox's own programs say to be."""
        size, have = 1, 0
        while have < size:
            script = _script(_READ, file, str(have + 1), str(self.most.output_bytes))
            result = await self.run(script, user=user, timeout=_SHORT_S, output_bytes=self.most.output_bytes)
            if result.exit_code:
                raise _file_error(file, result)
            said = result.stderr.text.strip()
            if not (said.isascii() and said.isdigit() and len(said) < _SIZE_DIGITS):
                raise OSError(f"{file}: its size is {said[:_SIZE_DIGITS]!r}")
            size = int(said)
            if max(size, have + len(result.stdout.data)) > most_bytes:
                raise OSError(errno.EFBIG, f"{file} has {size} bytes, more than {most_bytes}")
            yield result.stdout.data
            have += len(result.stdout.data)
            if not result.stdout.data:
                return  # it is empty, or shorter than it was


def _script(script: str, *arguments: str) -> str:
    """A script of a shell with its arguments, in one line of text. A name that begins with a dash is a file."""
    file, *others = arguments
    named = f"./{file}" if file.startswith("-") else file
    return f"set -- {shlex.join([named, *others])}\n{script}"


def _file_error(file: str, result: ExecutionResult) -> OSError:
    """The exception for a script that did not read or write a file."""
    if result.outcome is Outcome.TIME_LIMIT:
        return TimeoutError(f"{file}: {result.message}")
    match result.exit_code:
        case code if code == _DIRECTORY:
            return IsADirectoryError(f"{file} is a directory")
        case code if code == _MISSING:
            return FileNotFoundError(f"there is no file {file}")
        case code if code == _DENIED:
            return PermissionError(f"permission denied: {file} {result.stderr.text.strip()}".strip())
    return OSError(f"{file}: {result.stderr.text.strip() or result.message}")


async def _patiently(call: Callable[[], Awaitable[T]]) -> T:
    """Makes a call, and again if the executor or the session has no room, for up to `_RETRY_S`."""
    deadline = asyncio.get_running_loop().time() + _RETRY_S
    while True:
        try:
            return await call()
        except (Overloaded, SessionBusy) as error:  # again is safe: what found no room did not begin
            if asyncio.get_running_loop().time() > deadline:
                raise
            await asyncio.sleep(getattr(error, "retry_after_s", 1.0))
