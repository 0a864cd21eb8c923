"""The provider itself: a session for each sample, a command beside its shell for each call.

Invariants: what a command does is its result; what fairbox fails to do is an exception and never a result; a call that
is cancelled ends what it has started; a sample's session ends with it. No command is run twice, so `timeout_retry` has
no effect.
"""

from __future__ import annotations

import asyncio
import logging
import shlex
import uuid
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from inspect_ai.util import (
    ExecResult,
    OutputLimitExceededError,
    SandboxEnvironment,
    SandboxEnvironmentLimits,
    SandboxUnavailableError,
    SandboxUserUnsupportedError,
    sandboxenv,
)
from pydantic import BaseModel

import executor_service as fairbox
from fairbox.errors import FairboxError
from fairbox_inspect.config import FairboxSandboxConfig

if TYPE_CHECKING:
    from executor_service import ExecutionResult, ExecutorClient, Session

T = TypeVar("T")
_log = logging.getLogger(__name__)
_SANDBOXES = 128
"""Samples at once, unless `max_sandboxes` says otherwise: half of an executor's `max_sessions`."""
_IDLE_TTL_S = 3600.0
"""A session lives for so long without a command: longer than a model thinks; sessions of an evaluation that was killed
go by then."""
_RETRY_S = 300.0
"""Seconds in which an executor that is full is asked again."""
_LAST_CALL_S = 10.0
"""Seconds that the end of a session may take when a sample has been interrupted."""
_COMMAND_BYTES = 100_000
"""Larger commands are put into a file: Linux allows one argument 128 KiB."""
_PIECE = 32 << 20
"""Bytes of a file that are written at once; standard input takes up to 64 MiB."""
_SHORT_S = 120.0
"""Seconds in which a piece of a file is read or written."""
_NOT_EXECUTABLE = 126
"""Exit code of shells for a program that may not be run."""
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


class SandboxFailure(FairboxError):
    """fairbox did not run a command to its end, and the command had no part in it."""


@sandboxenv(name="fairbox")
class FairboxSandboxEnvironment(SandboxEnvironment):  # type: ignore[misc]
    """A sample's sandbox. Relative paths are below the image's working folder."""

    def __init__(self, client: ExecutorClient, session: Session, wall_time_s: float, output_bytes: int) -> None:
        """`wall_time_s` and `output_bytes`: the most that the executor allows a command."""
        super().__init__()
        self._client = client
        self._session = session
        self._wall_time_s = wall_time_s
        self._output_bytes = output_bytes

    @classmethod
    def default_concurrency(cls) -> int | None:
        return _SANDBOXES

    @classmethod
    def config_deserialize(cls, config: dict[str, Any]) -> BaseModel:
        return FairboxSandboxConfig.model_validate(config)

    @classmethod
    async def task_init(cls, task_name: str, config: BaseModel | str | None) -> None:
        """Asks whether the executor is there, and has it fetch the image if that is to be fetched."""
        found = _config(config)
        async with fairbox.ExecutorClient(found.executor) as client:
            await client.status()
            if found.image.startswith("docker://"):
                await client.prepare_image(found.image)

    @classmethod
    async def sample_init(
        cls, task_name: str, config: BaseModel | str | None, metadata: dict[str, str]
    ) -> dict[str, SandboxEnvironment]:
        found = _config(config)
        client = fairbox.ExecutorClient(found.executor)
        await client.__aenter__()
        try:
            most = next(iter((await client.status()).values())).max_limits
            if found.image.startswith("docker://"):
                await client.prepare_image(found.image)  # which is there, but for images of single samples
            info = await _patiently(
                lambda: client.create_session(
                    language="bash",
                    image=found.image.removeprefix("docker://"),
                    user=found.user,
                    env=found.env,
                    owner=f"{task_name}/{metadata.get('__sample_id__', '')}"[:128],
                    idle_ttl_s=_IDLE_TTL_S,
                    limits=fairbox.Limits(
                        wall_time_s=most.wall_time_s,
                        memory_bytes=found.memory_bytes,
                        processes=found.processes,
                        disk_bytes=found.disk_bytes,
                        file_bytes=found.file_bytes,
                    ),
                )
            )
        except BaseException:
            await client.__aexit__(None, None, None)
            raise
        session = fairbox.Session(client, info)
        return {"default": cls(client, session, most.wall_time_s, most.output_bytes)}

    @classmethod
    async def sample_cleanup(
        cls,
        task_name: str,
        config: BaseModel | str | None,
        environments: dict[str, SandboxEnvironment],
        interrupted: bool,
    ) -> None:
        for each in environments.values():
            sandbox = each.as_type(cls)
            try:
                await sandbox._client.delete_session(sandbox._session.session_id, timeout=_LAST_CALL_S)
            except FairboxError as error:  # the sample has its result
                _log.warning("a sandbox could not be ended, and lives for its idle time: %s", error)
            finally:
                await sandbox._client.__aexit__(None, None, None)

    async def exec(
        self,
        cmd: list[str],
        input: str | bytes | None = None,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        user: str | None = None,
        timeout: int | None = None,
        timeout_retry: bool = True,
        concurrency: bool = True,
    ) -> ExecResult[str]:
        """Runs a command to its end. As `SandboxEnvironment.exec`; raises what fairbox raises, too."""
        command = f"exec {shlex.join(cmd)}"
        if cwd is not None:
            command = f"cd -- {shlex.quote(cwd)} && {command}"
        limit, limit_name = (
            SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE,
            SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE_STR,
        )
        if limit > self._output_bytes:
            limit, limit_name = self._output_bytes, f"{self._output_bytes} bytes"
        data = input.encode() if isinstance(input, str) else input or b""
        result = await self._run(command, data, env=env, user=user, timeout=timeout, output_bytes=limit)
        stdout, stderr = result.stdout.text, result.stderr.text
        if result.stdout.truncated or result.stderr.truncated:
            raise OutputLimitExceededError(limit_name, stdout if result.stdout.truncated else stderr)
        if result.exit_code == _NOT_EXECUTABLE and "permission denied" in stderr.lower():
            raise PermissionError(f"{cmd[0]}: {stderr.strip()}")
        if result.outcome not in (fairbox.Outcome.FINISHED, fairbox.Outcome.NONZERO_EXIT):
            stderr = f"{stderr}{result.message}\n"  # a limit of the sandbox, or a signal
        return ExecResult(result.exit_code == 0, result.exit_code, stdout, stderr)

    async def write_file(self, file: str, contents: str | bytes) -> None:
        """As `SandboxEnvironment.write_file`."""
        data = contents.encode() if isinstance(contents, str) else contents
        for start in range(0, len(data) or 1, _PIECE):
            script = _script(_WRITE, file, str(start))
            result = await self._run(script, data[start : start + _PIECE], timeout=_SHORT_S)
            if result.exit_code:
                raise _file_error(file, result)

    @overload
    async def read_file(self, file: str, text: Literal[True] = True) -> str: ...

    @overload
    async def read_file(self, file: str, text: Literal[False]) -> bytes: ...

    async def read_file(self, file: str, text: bool = True) -> str | bytes:
        """As `SandboxEnvironment.read_file`."""
        most, name = SandboxEnvironmentLimits.MAX_READ_FILE_SIZE, SandboxEnvironmentLimits.MAX_READ_FILE_SIZE_STR
        pieces, size, have = list[bytes](), 1, 0
        while have < size:
            script = _script(_READ, file, str(have + 1), str(min(self._output_bytes, most + 1)))
            result = await self._run(script, timeout=_SHORT_S, output_bytes=self._output_bytes)
            if result.exit_code:
                raise _file_error(file, result)
            size = int(result.stderr.data)
            if size > most:
                raise OutputLimitExceededError(name, None)
            pieces.append(result.stdout.data)
            have += len(result.stdout.data)
            if not result.stdout.data:
                break  # it is empty, or shorter than it was
        data = b"".join(pieces)
        return data.decode() if text else data

    async def _run(
        self,
        command: str,
        data: bytes = b"",
        *,
        env: dict[str, str] | None = None,
        user: str | None = None,
        timeout: float | None = None,
        output_bytes: int = 0,
    ) -> ExecutionResult:
        """Runs a command of a shell. Raises TimeoutError, SandboxUnavailableError if the session ended by what ran in
        it, SandboxUserUnsupportedError, SandboxFailure and ExecutorError."""
        files = []
        if len(command.encode()) > _COMMAND_BYTES:
            name = f".command-{uuid.uuid4().hex}"
            files.append(fairbox.InputFile(name, command.encode()))
            command = f'file=/sandbox/{name}; eval "$(cat $file; rm $file)"'
        limits = fairbox.Limits(wall_time_s=timeout or self._wall_time_s, output_bytes=output_bytes)
        try:
            result = await _patiently(
                lambda: self._session.run(
                    command, beside=True, stdin=data, env=env, user=user or "", files=files, limits=limits
                )
            )
        except fairbox.SessionNotFound as error:
            if error.cause is fairbox.Cause.POLICY:
                raise SandboxUnavailableError(str(error)) from error
            raise
        except fairbox.InvalidRequest as error:
            if [field.field for field in error.fields] == ["user"]:
                raise SandboxUserUnsupportedError(str(error)) from error
            raise
        if result.cause is fairbox.Cause.INFRA:
            raise SandboxFailure(result.message)
        if result.outcome is fairbox.Outcome.TIME_LIMIT:
            raise TimeoutError(result.message)
        if result.outcome is fairbox.Outcome.OUTPUT_LIMIT:
            raise OutputLimitExceededError(f"{output_bytes} bytes", result.stdout.text)
        return result


def _config(config: BaseModel | str | None) -> FairboxSandboxConfig:
    if isinstance(config, FairboxSandboxConfig):
        return config
    if isinstance(config, BaseModel):
        return FairboxSandboxConfig.model_validate(config.model_dump())
    return FairboxSandboxConfig.parse(config or "")


def _script(script: str, *arguments: str) -> str:
    """A script of a shell with its arguments, in one line of text. A name that begins with a dash is a file."""
    file, *others = arguments
    named = f"./{file}" if file.startswith("-") else file
    return f"set -- {shlex.join([named, *others])}\n{script}"


def _file_error(file: str, result: ExecutionResult) -> Exception:
    """The exception for a script that did not read or write a file."""
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
        except (fairbox.Overloaded, fairbox.SessionBusy) as error:  # again is safe: what found no room did not begin
            if asyncio.get_running_loop().time() > deadline:
                raise
            await asyncio.sleep(getattr(error, "retry_after_s", 1.0))
