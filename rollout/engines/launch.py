"""sglang servers on this machine that live as long as whoever started them.

Invariants: a server answers when its context is entered; it is gone, with everything below it, when the context is
left or this process dies, however it dies; why one did not start is in the error, and all that it said in its log.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from fairbox.ports import free_port
from rollout.engines import keeper
from rollout.engines.base import EngineUnavailable
from rollout.engines.launch_plan import LaunchConfig, plan, server_command
from rollout.engines.sglang_http import SglangHttp

__all__ = ["KeptProcess", "LocalServers", "free_port", "server_env", "visible_gpus", "wait_ready"]

_ASK_S = 5.0
"""For one answer of a server that is starting."""
_ASK_EVERY_S = 0.5
_STOP_S = 30.0
"""The keeper needs 20 s at most."""
_TAIL_BYTES = 2000


def server_env(env: Mapping[str, str]) -> dict[str, str]:
    """The environment of a server: this process's, `/health` without a generated token (which a paused server would
    not give), and `env`. Logprobs stay those of the distribution after temperature."""
    inherited = {name: value for name, value in os.environ.items() if name != "SGLANG_RETURN_ORIGINAL_LOGPROB"}
    return inherited | {"SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "0"} | dict(env)


def visible_gpus(first: int, count: int, env: Mapping[str, str]) -> str:
    """`CUDA_VISIBLE_DEVICES` of a server that gets `count` GPUs from the `first` on, of those that `env` shows.

    Raises EngineUnavailable when it shows fewer.
    """
    shown = env.get("CUDA_VISIBLE_DEVICES")
    if shown is None:
        return ",".join(str(gpu) for gpu in range(first, first + count))
    gpus = [gpu.strip() for gpu in shown.split(",") if gpu.strip()]
    if first + count > len(gpus):
        raise EngineUnavailable(f"CUDA_VISIBLE_DEVICES is {shown!r}: {len(gpus)} GPUs, but {first + count} are needed")
    return ",".join(gpus[first : first + count])


class KeptProcess:
    """`async with KeptProcess(words, env=..., log=...)`: a command that ends with this process.

    Both streams of the command go to the file `log`.
    """

    def __init__(self, words: Sequence[str], *, env: Mapping[str, str], log: Path, restarts: int = 0) -> None:
        self._words = keeper.command(words, restarts=restarts)
        self._env = dict(env)
        self.log = log
        self._process: asyncio.subprocess.Process | None = None

    async def __aenter__(self) -> Self:
        with self.log.open("ab") as out:
            self._process = await asyncio.create_subprocess_exec(
                *self._words,
                stdin=asyncio.subprocess.PIPE,
                stdout=out,
                stderr=out,
                env=self._env,
                start_new_session=True,  # Ctrl-C in a terminal is for this process alone
            )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.shield(self.stop())

    @property
    def ended(self) -> bool:
        """Whether the command ended, with all its restarts."""
        return self._process is None or self._process.returncode is not None

    async def stop(self) -> None:
        """Ends the command and waits for it. Idempotent."""
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        process.stdin.close()
        try:
            await asyncio.wait_for(process.wait(), _STOP_S)
        except TimeoutError:
            process.kill()
            await process.wait()

    def tail(self) -> str:
        """The end of the log."""
        data = self.log.read_bytes() if self.log.exists() else b""
        return data[-_TAIL_BYTES:].decode(errors="replace").strip()


class LocalServers:
    """`async with LocalServers(config) as urls`: the URL of each replica, by its name, once all of them answer.

    GPUs are given out in order, `tensor_parallel` to each replica. logs: folder for the servers' logs, None for a
    temporary one. Raises EngineUnavailable with the end of the log of a server that did not start.
    """

    def __init__(self, config: LaunchConfig, *, logs: Path | None = None) -> None:
        self._config = config
        self._logs = logs
        self._stack = contextlib.AsyncExitStack()
        self.processes: dict[str, KeptProcess] = {}

    async def __aenter__(self) -> dict[str, str]:
        config = self._config
        async with contextlib.AsyncExitStack() as stack:
            logs = self._logs or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fairbox-sglang-")))
            urls = {}
            for index, replica in enumerate(plan(config)):
                if len(replica.parts) > 1:
                    raise EngineUnavailable(f"{replica.name} needs {len(replica.parts)} machines: launch it with Ray")
                port, part = free_port(), replica.parts[0]
                env = server_env(config.env)
                if part.gpus:
                    env["CUDA_VISIBLE_DEVICES"] = visible_gpus(index * part.gpus, part.gpus, env)
                words = server_command(config, replica, part, host="127.0.0.1", port=port)
                process = KeptProcess(words, env=env, log=logs / f"{replica.name}.log", restarts=config.restarts)
                self.processes[replica.name] = await stack.enter_async_context(process)
                urls[replica.name] = f"http://127.0.0.1:{port}"
            await asyncio.gather(
                *(wait_ready(urls[name], self.processes[name], config.ready_within_s) for name in urls)
            )
            self._stack = stack.pop_all()
        return urls

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.shield(self._stack.aclose())


async def wait_ready(url: str, process: KeptProcess, timeout_s: float) -> None:
    """Returns when the server answers /health. Raises EngineUnavailable when it ended or time is over."""
    try:
        async with asyncio.timeout(timeout_s), SglangHttp(url) as server:
            while not process.ended:
                with contextlib.suppress(EngineUnavailable):
                    await server.get("/health", timeout_s=_ASK_S)
                    return
                await asyncio.sleep(_ASK_EVERY_S)
    except TimeoutError:
        raise EngineUnavailable(f"{url}: not ready within {timeout_s:g} s; its log ends:\n{process.tail()}") from None
    raise EngineUnavailable(f"{url}: the server ended; its log ends:\n{process.tail()}")
