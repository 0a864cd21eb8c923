"""The environment itself: a shell session for each trial, a command beside its shell for each call.

Invariants: what a command does is its result; what fairbox fails to do is an exception and never a result; a task that
wants what a sandbox does not have is refused before anything of it runs; a trial's session ends with it.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import tarfile
import tempfile
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from harbor.environments.base import BaseEnvironment, ExecResult, transfer_tar_filter
from harbor.environments.capabilities import EnvironmentCapabilities, EnvironmentResourceCapabilities
from harbor.environments.definition import COMPOSE_FILE_NAME
from harbor.environments.options import EnvironmentOptions
from harbor.environments.tar_transfer import (
    pack_dir_to_file,
    tar_pack_succeeded,
)
from harbor.models.task.config import NetworkMode, NetworkPolicy
from harbor.models.trial.config import ResourceMode
from pydantic import Field

import executor_service as fairbox
from fairbox.errors import FairboxError

_PACK_S = 600
"""Seconds in which a folder is packed or unpacked."""
_SHORT_S = 60
_MOST_BYTES = 4 << 30
"""Bytes of a file, or of all that is in a folder, that are read from a sandbox."""
_MIB = 1 << 20


class FairboxOptions(EnvironmentOptions):  # type: ignore[misc]
    """Options, as `--ek name=value` has them."""

    executor: str = Field(default="127.0.0.1:50051", description="Address; several with commas are spread over.")
    image: str = Field(
        default="",
        description="Name of the executor's image: {name} is the task's name, {docker_image} its docker_image; "
        "docker:// before it has the executor fetch it. Empty: docker_image, else the task's name.",
    )
    offline: bool = Field(
        default=False,
        description="Also run tasks that may use the internet, without it: of those you know that they need none.",
    )


class FairboxEnvironment(BaseEnvironment):  # type: ignore[misc]
    """A trial's sandbox. Relative paths are below the task's `workdir`, else the image's working folder."""

    options_model = FairboxOptions
    options: FairboxOptions

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._made: fairbox.ShellSandbox | None = None
        super().__init__(*args, **kwargs)

    @staticmethod
    def type() -> str:
        return "fairbox"

    @property
    def capabilities(self) -> EnvironmentCapabilities:
        return EnvironmentCapabilities(disable_internet=True)

    @classmethod
    def resource_capabilities(cls) -> EnvironmentResourceCapabilities:
        return EnvironmentResourceCapabilities(memory_limit=True)

    def validate_network_policy_support(self, network_policy: NetworkPolicy | None = None) -> None:
        """Refuses a task that may use the internet, unless it is known to need none."""
        policy = network_policy or self._network_policy
        if policy.network_mode is NetworkMode.PUBLIC:
            if not self.options.offline:
                raise ValueError(
                    "network_mode='public' is not supported by fairbox: a sandbox has no network. If this task needs "
                    "none, say so: network_mode='no-network' in its [environment], or --ek offline=true."
                )
            return
        super().validate_network_policy_support(policy)

    def _validate_definition(self) -> None:
        if (self.environment_dir / COMPOSE_FILE_NAME).exists():
            raise ValueError(f"fairbox runs one image, and {self.environment_dir} has a {COMPOSE_FILE_NAME}")

    @property
    def image(self) -> str:
        """Name of the image, as the executor is asked for it."""
        docker_image = self.task_env_config.docker_image or ""
        if not self.options.image:
            return docker_image or self.environment_name
        return self.options.image.replace("{name}", self.environment_name).replace("{docker_image}", docker_image)

    async def start(self, force_build: bool) -> None:
        """Makes the sandbox of the executor's image. Nothing is built: `force_build` is an error."""
        if force_build:
            raise ValueError("fairbox builds no images: build it, and `fairbox image add` it to the executor's")
        memory_mb = self._resource_limit_value("memory", auto_mode=ResourceMode.LIMIT) or 0
        self._made = await fairbox.ShellSandbox.start(
            self.options.executor,
            image=self.image,
            env=self._startup_env(),
            owner=self.session_id,
            limits=fairbox.Limits(memory_bytes=memory_mb * _MIB),
        )
        try:
            if folder := self.task_env_config.workdir:
                await self._done(f"mkdir -p {shlex.quote(folder)}")
            await self.ensure_dirs(self._mount_targets(writable_only=True))
            await self._upload_environment_dir_after_start()
        except BaseException:
            await self.stop(delete=True)
            raise

    async def stop(self, delete: bool) -> None:
        """Ends the sandbox, or leaves it to its idle time of an hour."""
        made, self._made = self._made, None
        if made is not None:
            await made.close(keep=not delete)

    async def exec(
        self,
        command: str,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_sec: int | None = None,
        user: str | int | None = None,
    ) -> ExecResult:
        """Runs a command to its end. RuntimeError if its time is over, as with Harbor's docker; raises what fairbox
        raises, too."""
        found = self._resolve_user(user)
        if folder := cwd or self.task_env_config.workdir:
            command = f"cd -- {shlex.quote(folder)} || exit\n{command}"
        result = await self._sandbox.run(
            command,
            env=self._merge_env(env),
            user="" if found is None else str(found),
            timeout=timeout_sec,
            output_bytes=self._sandbox.most.output_bytes,
        )
        if result.outcome is fairbox.Outcome.TIME_LIMIT:
            allowed = "" if timeout_sec else ", the executor's max_limits.wall_time_s"
            raise RuntimeError(f"Command timed out after {timeout_sec or self._sandbox.most.wall_time_s:g} s{allowed}")
        stderr = result.stderr.text
        if result.outcome not in (fairbox.Outcome.FINISHED, fairbox.Outcome.NONZERO_EXIT):
            stderr = f"{stderr}{result.message}\n"  # a limit of the sandbox, or a signal
        return ExecResult(stdout=result.stdout.text, stderr=stderr, return_code=result.exit_code)

    async def upload_file(self, source_path: Path | str, target_path: str) -> None:
        """Writes a file of this machine, with the bits that let it be run."""
        with await asyncio.to_thread(open, source_path, "rb") as source:
            await self._sandbox.write(target_path, source, user="root")
            mode = os.fstat(source.fileno()).st_mode & 0o777
        await self._done(f"chmod {mode:o} -- {shlex.quote(target_path)}")

    async def upload_dir(self, source_dir: Path | str, target_dir: str) -> None:
        """Writes what is in a folder of this machine. The image needs `tar`."""
        async with self._archive() as (here, there):
            await asyncio.to_thread(pack_dir_to_file, source_dir, here, compress=False, include_root=False)
            with await asyncio.to_thread(open, here, "rb") as source:
                await self._sandbox.write(there, source, user="root")
            folder = shlex.quote(target_dir)
            await self._done(f"mkdir -p {folder} && tar -xf {there} --no-same-owner -C {folder}")

    async def download_file(self, source_path: str, target_path: Path | str) -> None:
        """Reads a file."""
        target = Path(target_path)
        target.parent.mkdir(parents=True, exist_ok=True)
        with await asyncio.to_thread(open, target, "wb") as file:
            async for piece in self._sandbox.read(source_path, most_bytes=_MOST_BYTES, user="root"):
                await asyncio.to_thread(file.write, piece)

    async def download_dir(self, source_dir: str, target_dir: Path | str) -> None:
        """Reads what is in a folder. What would lie outside of `target_dir` is left out. The image needs `tar`."""
        async with self._archive() as (here, there):
            command = f"tar -cf {there} -C {shlex.quote(source_dir)} ."
            done = await self.exec(command, cwd="/", timeout_sec=_PACK_S, user="root")
            if not tar_pack_succeeded(done.return_code, stdout=done.stdout, stderr=done.stderr, logger=self.logger):
                raise RuntimeError(f"{source_dir} could not be packed: {done.stderr or done.stdout}")
            await self.download_file(there, here)
            await asyncio.to_thread(_unpack, here, Path(target_dir))

    @property
    def _sandbox(self) -> fairbox.ShellSandbox:
        if self._made is None:
            raise RuntimeError("the environment has not been started, or has been stopped")
        return self._made

    async def _done(self, command: str) -> None:
        """Runs a command of ours as root. RuntimeError if it fails."""
        result = await self.exec(command, cwd="/", timeout_sec=_PACK_S, user="root")
        if result.return_code:
            raise RuntimeError(f"{command}: {result.stderr or result.stdout}")

    @asynccontextmanager
    async def _archive(self) -> AsyncIterator[tuple[Path, str]]:
        """Names for an archive here and in the sandbox; neither is there afterwards."""
        name = f"fairbox-{uuid.uuid4().hex}.tar"
        there = f"/tmp/{name}"  # noqa: S108 - the sandbox's
        with tempfile.TemporaryDirectory() as folder:
            try:
                yield Path(folder, name), there
            finally:
                with suppress(FairboxError):  # it is gone with the sandbox, or goes with it
                    await self.exec(f"rm -f {there}", cwd="/", timeout_sec=_SHORT_S, user="root")


def _unpack(archive: Path, target: Path) -> None:
    """Unpacks what the sandbox's own `tar` has written. As it is: a compressed archive may have no end."""
    target.mkdir(parents=True, exist_ok=True)
    with tarfile.open(archive, "r:") as tar:
        for member in tar:
            with suppress(tarfile.FilterError):
                tar.extract(member, target, filter=transfer_tar_filter)
