"""sglang servers on this machine that live as long as whoever started them.

Invariants: a server answers when its context is entered; it is gone, with everything below it, when the context is
left or this process dies, however it dies; why one did not start is in the error, and all that it said in its log.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from fairbox.net.ports import free_port
from rollout.engines.base import EngineUnavailable
from rollout.engines.http import EngineHttp
from rollout.engines.sglang import keeper

READY_WITHIN_S = 1200.0
"""Longest wait until a server answers: loading a large model takes minutes."""
_ASK_EVERY_S = 0.5
_STOP_S = 30.0
"""The keeper needs 20 s at most."""
_TAIL_BYTES = 2000


@dataclass(frozen=True, slots=True)
class LaunchConfig:
    """The model to serve, and the replicas and resources for it."""

    model: Path
    """Folder in the layout of the Hugging Face hub, at this path on every machine."""
    replicas: int = 1
    """Servers with the whole model each."""
    tensor_parallel: int = 1
    """GPUs of one machine that share one replica."""
    python: str = "python3"
    """Interpreter that has sglang, on every machine."""
    on_cpu: bool = False
    """Says whether a replica has no GPU at all."""
    args: tuple[str, ...] = ()
    """Further arguments of `python -m sglang.launch_server`."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Further environment variables of the servers."""
    restarts: int = 3
    """Most restarts of a server that ends by itself."""

    @property
    def gpus(self) -> int:
        """GPUs of one replica."""
        return 0 if self.on_cpu else self.tensor_parallel


def server_command(config: LaunchConfig, *, host: str, port: int) -> list[str]:
    """Command line of a server that listens at `host` and `port`."""
    words = [config.python, "-m", "sglang.launch_server", "--model-path", str(config.model)]
    words += ["--host", host, "--port", str(port)]
    if config.tensor_parallel > 1:
        words += ["--tp-size", str(config.tensor_parallel)]
    return [*words, *config.args]


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

    async def __aexit__(self, *exc: object) -> None:
        await asyncio.shield(self.stop())

    @property
    def ended(self) -> bool:
        """Says whether the command ended, with all its restarts."""
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


@contextlib.asynccontextmanager
async def local_servers(config: LaunchConfig) -> AsyncIterator[dict[str, str]]:
    """The URL of each replica, by its name, once all of them answer. GPUs are given out in order. Raises
    EngineUnavailable with the end of the log of a server that did not start."""
    async with contextlib.AsyncExitStack() as stack:
        logs = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fairbox-sglang-")))
        urls, processes = {}, {}
        for index in range(config.replicas):
            name, port, env = f"replica-{index}", free_port(), server_env(config.env)
            if config.gpus:
                env["CUDA_VISIBLE_DEVICES"] = visible_gpus(index * config.gpus, config.gpus, env)
            words, log = server_command(config, host="127.0.0.1", port=port), logs / f"{name}.log"
            process = KeptProcess(words, env=env, log=log, restarts=config.restarts)
            processes[name] = await stack.enter_async_context(process)
            urls[name] = f"http://127.0.0.1:{port}"
        await asyncio.gather(*(wait_ready(urls[name], processes[name]) for name in urls))
        yield urls


async def wait_ready(url: str, process: KeptProcess) -> None:
    """Returns when the server answers /health. Raises EngineUnavailable when it ended or time is over."""
    try:
        async with asyncio.timeout(READY_WITHIN_S), EngineHttp(url) as server:
            while not process.ended:
                with contextlib.suppress(EngineUnavailable):
                    await server.get("/health", timeout_s=5.0)
                    return
                await asyncio.sleep(_ASK_EVERY_S)
    except TimeoutError:
        raise EngineUnavailable(
            f"{url}: not ready within {READY_WITHIN_S:g} s; its log ends:\n{process.tail()}"
        ) from None
    raise EngineUnavailable(f"{url}: the server ended; its log ends:\n{process.tail()}")
