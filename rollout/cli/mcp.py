"""`fairbox mcp`: gives an agent the sandbox as tools, by the Model Context Protocol.

It speaks over stdin and stdout, as agents start it, or over HTTP on loopback.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass

from executor_service import ExecutorClient
from fairbox.config import load, setting
from fairbox.errors import ConfigError
from fairbox.extras import require
from fairbox.net.serving import run_service, until_stopped
from rollout.stack import own_executor

_PIECE = 1 << 16
"""Bytes that are passed on at once."""
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True)
class McpConfig:
    """Settings of `fairbox mcp`."""

    executor: str = setting("127.0.0.1:50051", help="Addresses of executors, separated by commas.")
    up: bool = setting(False, help="Start an executor of its own instead.")
    image: str = setting("", help="Image that is the root of programs and shells; empty: none.")
    http: str = setting(
        "", help="Address on loopback to serve `/mcp` at, such as 127.0.0.1:8000; empty: stdin, stdout."
    )

    @property
    def http_address(self) -> tuple[str, int]:
        """Host and port."""
        host, _, port = self.http.rpartition(":")
        return host.strip("[]"), int(port) if port.isdigit() else 0

    def validate(self) -> None:
        """Raises ConfigError for what the types can't say."""
        host, port = self.http_address
        if self.http and (host not in _LOOPBACK or not 0 < port < 1 << 16):
            raise ConfigError(
                f"http is {self.http!r}, must be one of {', '.join(_LOOPBACK)}, a colon and a port: whoever reaches it "
                f"can run programs"
            )


def main(argv: Sequence[str]) -> int:
    """Entry point; returns the exit code."""
    config = load(McpConfig, prefix="FAIRBOX_MCP", prog="fairbox mcp", description=__doc__ or "", argv=argv)
    require("fairbox mcp", "mcp", "mcp")

    async def serve(stop: asyncio.Event) -> None:
        opening = own_executor() if config.up else nullcontext(config.executor)
        async with opening as address, ExecutorClient(address) as executor:
            await _serve(config, executor, stop)

    return run_service(serve, name="fairbox mcp")


async def _serve(config: McpConfig, executor: ExecutorClient, stop: asyncio.Event) -> None:
    """Returns when the agent has closed its end, or `stop` is set."""
    from rollout.interop.mcp import open_server

    async with open_server(executor, image=config.image) as server:
        if config.http:
            host, port = config.http_address
            await until_stopped(stop, server.run_streamable_http_async(host=host, port=port))
        else:
            async with _stdin_that_ends(stop):
                await server.run_stdio_async()


@asynccontextmanager
async def _stdin_that_ends(stop: asyncio.Event) -> AsyncIterator[None]:
    """Lets sys.stdin end with `stop`. The library waits in a thread for the next line, and can't be ended before it has
    one: so another thread, which nobody waits for, passes on what comes."""
    agent, (ours, theirs) = os.dup(0), socket.socketpair()
    os.dup2(nothing := os.open(os.devnull, os.O_RDONLY), 0)  # so that no child takes what the agent says
    os.close(nothing)

    def end() -> None:
        with suppress(OSError):
            ours.shutdown(socket.SHUT_WR)

    def pass_on() -> None:
        with suppress(OSError):
            while data := os.read(agent, _PIECE):
                ours.sendall(data)
        end()

    async def end_with_stop() -> None:
        await stop.wait()
        end()

    threading.Thread(target=pass_on, daemon=True).start()
    before, sys.stdin = sys.stdin, theirs.makefile(encoding="utf-8")
    async with asyncio.TaskGroup() as tasks:
        ending = tasks.create_task(end_with_stop())
        try:
            yield
        finally:
            ending.cancel()
            sys.stdin = before
