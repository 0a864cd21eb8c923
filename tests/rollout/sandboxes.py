"""A sandbox behind HTTP whose answers a test chooses, and the code interpreter in front of it under a real limiter."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from limiter import ReleaseOutcome
from limiter.config import BucketConfig, LimiterConfig
from limiter.server import LimiterServer
from rollout.tools import ToolResponse
from rollout.tools.code import CodeInterpreter, CodeInterpreterConfig
from tests.limiter.servers import ANYWHERE, until

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]
FINISHED = {"status": "Finished", "execution_time": 0.1, "return_code": 0, "stdout": "42\n", "stderr": ""}


def reply(status: str = "Success", **fields: Any) -> dict[str, Any]:
    """The body of /run_code, of a program that printed 42 unless `run_result` says otherwise."""
    return {"status": status, "message": "", "compile_result": None, "run_result": FINISHED, "files": {}} | fields


def ran(**fields: Any) -> dict[str, Any]:
    """A CommandRunResult."""
    return FINISHED | fields


class Sandbox:
    """Service that records requests and returns `answers` in turn; after the last one it says that 42 was printed."""

    def __init__(self) -> None:
        self.url = ""
        self.answers: list[Answer] = []
        self.asked: list[dict[str, Any]] = []
        self.paths: list[str] = []
        self.at: list[float] = []
        """The loop's time of each request."""
        self.running = self.most = 0

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.at.append(asyncio.get_running_loop().time())
        self.paths.append(request.path)
        self.asked.append(await request.json())
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            return await self.answers.pop(0)(request) if self.answers else web.json_response(reply())
        finally:
            self.running -= 1


@asynccontextmanager
async def sandbox(*answers: Answer, path: str = "/run_code") -> AsyncIterator[Sandbox]:
    """One that listens on loopback. As SandboxFusion, it does not heed that a caller goes away."""
    service = Sandbox()
    service.answers += answers
    application = web.Application(client_max_size=8 << 20)
    application.router.add_post("/{path:.*}", service.answer)
    runner = web.AppRunner(application, handler_cancellation=False, shutdown_timeout=0.1)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0]
        service.url = f"http://{host}:{port}{path}"
        yield service
    finally:
        await runner.cleanup()


def answers(status: int = 200, body: Any = None, headers: dict[str, str] | None = None) -> Answer:
    """Answers with this; `body` is JSON unless it is bytes."""

    async def answer(_: web.Request) -> web.StreamResponse:
        if isinstance(body, bytes):
            return web.Response(status=status, body=body, headers=headers)
        return web.json_response(body, status=status, headers=headers)

    return answer


@asynccontextmanager
async def adaptive_limiter(max_in_flight: int = 4, max_hold_s: float = 600.0) -> AsyncIterator[LimiterServer]:
    """A limiter of this process whose bucket `code` gives leases that nobody binds."""
    config = LimiterConfig(
        listen=ANYWHERE,
        admin_listen=ANYWHERE,
        health_listen=ANYWHERE,
        metrics_listen="",
        buckets={"code": BucketConfig(max_in_flight, max_hold_s=max_hold_s, adaptive=True)},
        fresh=True,
    )
    async with LimiterServer(config) as server:
        yield server


def interpreter_at(url: str, limiter: LimiterServer | None = None, **settings: Any) -> CodeInterpreter:
    """The tool, not entered; without a limiter it runs without the global limit. It knows no executor."""
    chosen: dict[str, Any] = {"default_timeout": 20.0, "enable_global_rate_limit": limiter is not None} | settings
    config = CodeInterpreterConfig(sandbox_fusion_url=url, **chosen)
    return CodeInterpreter(config, limiter="" if limiter is None else limiter.address)


@asynccontextmanager
async def opened(*given: Answer, **settings: Any) -> AsyncIterator[tuple[CodeInterpreter, Sandbox, LimiterServer]]:
    """The tool in front of a service that gives these answers first, under a limiter."""
    async with (
        sandbox(*given) as service,
        adaptive_limiter() as limiter,
        interpreter_at(service.url, limiter, **settings) as tool,
    ):
        await until(lambda: limiter.statistics().held == 0, within=30)
        yield tool, service, limiter


async def given_back(limiter: LimiterServer, outcome: ReleaseOutcome, count: int) -> None:
    """Returns when nothing is held and so many leases have ended so."""
    await until(lambda: limiter.statistics().held == 0, within=30)
    await until(lambda: limiter.statistics().bucket().outcomes[outcome] == count, within=30)


async def run(tool: CodeInterpreter, code: str = "print(6 * 7)", **arguments: Any) -> ToolResponse:
    """One call, within a time that is generous: nothing is timed."""
    async with asyncio.timeout(120):
        return await tool.execute("trajectory", {"code": code}, **arguments)
