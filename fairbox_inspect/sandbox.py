"""The provider itself: a session for each sample, a command beside its shell for each call.

Invariants: what a command does is its result; what fairbox fails to do is an exception and never a result; a call that
is cancelled ends what it has started; a sample's session ends with it. No command is run twice, so `timeout_retry` has
no effect.
"""

from __future__ import annotations

import errno
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal, overload

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
from fairbox_inspect.config import FairboxSandboxConfig

_SANDBOXES = 128
"""Samples at once, unless `max_sandboxes` says otherwise: half of an executor's `max_sessions`."""
_NOT_EXECUTABLE = 126
"""Exit code of shells for a program that may not be run."""


@sandboxenv(name="fairbox")
class FairboxSandboxEnvironment(SandboxEnvironment):  # type: ignore[misc]
    """A sample's sandbox. Relative paths are below the image's working folder."""

    def __init__(self, sandbox: fairbox.ShellSandbox) -> None:
        super().__init__()
        self._sandbox = sandbox

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
        limits = fairbox.Limits(
            memory_bytes=found.memory_bytes,
            processes=found.processes,
            disk_bytes=found.disk_bytes,
            file_bytes=found.file_bytes,
        )
        owner = f"{task_name}/{metadata.get('__sample_id__', '')}"
        sandbox = await fairbox.ShellSandbox.start(
            found.executor, image=found.image, user=found.user, env=found.env, owner=owner, limits=limits
        )
        return {"default": cls(sandbox)}

    @classmethod
    async def sample_cleanup(
        cls,
        task_name: str,
        config: BaseModel | str | None,
        environments: dict[str, SandboxEnvironment],
        interrupted: bool,
    ) -> None:
        for each in environments.values():
            await each.as_type(cls)._sandbox.close()

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
        if limit > self._sandbox.most.output_bytes:
            limit, limit_name = self._sandbox.most.output_bytes, f"{self._sandbox.most.output_bytes} bytes"
        data = input.encode() if isinstance(input, str) else input or b""
        with _as_inspect_has_them():
            result = await self._sandbox.run(
                command, data, env=env, user=user or "", timeout=timeout, output_bytes=limit
            )
        if result.outcome is fairbox.Outcome.TIME_LIMIT:
            raise TimeoutError(result.message)
        if result.outcome is fairbox.Outcome.OUTPUT_LIMIT:
            raise OutputLimitExceededError(limit_name, result.stdout.text)
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
        with _as_inspect_has_them():
            await self._sandbox.write(file, contents.encode() if isinstance(contents, str) else contents)

    @overload
    async def read_file(self, file: str, text: Literal[True] = True) -> str: ...

    @overload
    async def read_file(self, file: str, text: Literal[False]) -> bytes: ...

    async def read_file(self, file: str, text: bool = True) -> str | bytes:
        """As `SandboxEnvironment.read_file`."""
        most = SandboxEnvironmentLimits.MAX_READ_FILE_SIZE
        try:
            with _as_inspect_has_them():
                data = b"".join([piece async for piece in self._sandbox.read(file, most_bytes=most)])
        except OSError as error:
            if error.errno == errno.EFBIG:
                raise OutputLimitExceededError(SandboxEnvironmentLimits.MAX_READ_FILE_SIZE_STR, None) from error
            raise
        return data.decode() if text else data


def _config(config: BaseModel | str | None) -> FairboxSandboxConfig:
    if isinstance(config, FairboxSandboxConfig):
        return config
    if isinstance(config, BaseModel):
        return FairboxSandboxConfig.model_validate(config.model_dump())
    return FairboxSandboxConfig.parse(config or "")


@contextmanager
def _as_inspect_has_them() -> Iterator[None]:
    """Errors that inspect has a name for: a session that was ended by what ran in it, a user who is not there."""
    try:
        yield
    except fairbox.SessionNotFound as error:
        if error.cause is fairbox.Cause.POLICY:
            raise SandboxUnavailableError(str(error)) from error
        raise
    except fairbox.InvalidRequest as error:
        if [field.field for field in error.fields] == ["user"]:
            raise SandboxUserUnsupportedError(str(error)) from error
        raise
