"""The page of a run, served on loopback while the run goes on: written anew when it is asked for and there is more.

Invariants: a page that is open keeps its parts, because each writing has a folder of its own, and the newest few stay;
writing takes at most half of the time; whoever names another host in a request gets nothing, so that no other site can
read the run by way of a browser. Everybody on this machine can ask.
"""

from __future__ import annotations

import asyncio
import hashlib
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Self

from aiohttp import web

from fairbox.clock import MonotonicClock
from fairbox.errors import ConfigError, FairboxError
from fairbox.net.http_server import HttpServer
from fairbox.security.client import is_loopback
from rollout.page.writer import files_of, write_page

_KEPT = 4
"""Writings whose pages may still be open."""
_PAGE = "report.html"
_LAST_CALLS_S = 1.0
_AGAIN_S = "3"
"""Seconds after which a browser asks again for a run that has no steps yet."""


class LivePage:
    """`async with LivePage(run, folder, listen="127.0.0.1:0", tokenizer=None) as live`; `live.address` has it.

    `folder` is an empty one, for what is written. Raises ConfigError for an address that is not loopback, and
    FairboxError for one that can't be had.
    """

    def __init__(self, run: Path, folder: Path, *, listen: str, tokenizer: str | None) -> None:
        if not is_loopback(listen.rpartition(":")[0].strip("[]")):
            raise ConfigError(f"listen is {listen!r}, must be loopback: the page has no password")
        self._run, self._folder, self._tokenizer = run, folder, tokenizer
        self._clock = MonotonicClock()
        self._writing: asyncio.Task[int] | None = None
        """The task that writes, for all who ask meanwhile."""
        self._written: list[tuple[int, str]] = []
        """(number, stamp of the run that it shows) of each writing that is kept."""
        self._rest_until = 0.0
        application = web.Application(middlewares=[_own_host])
        application.router.add_get("/", self._newest)
        application.router.add_get("/stamp", self._stamp)
        application.router.add_get(rf"/{{number:\d{{1,9}}}}/{{file:{_PAGE}|report-parts/\d{{1,9}}\.js}}", self._file)
        self._server = HttpServer(
            application, listen, setting="listen", logger="fairbox.rollout", last_calls_s=_LAST_CALLS_S
        )

    async def __aenter__(self) -> Self:
        await self._server.start(None)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._server.stop()
        if self._writing is not None:
            await asyncio.wait([self._writing])

    @property
    def address(self) -> str:
        return f"http://{self._server.address}/"

    async def _newest(self, _: web.Request) -> web.StreamResponse:
        try:
            if self._writing is None or self._writing.done():
                self._writing = asyncio.create_task(self._current(), name="a run's page")
                self._writing.add_done_callback(lambda task: task.cancelled() or task.exception())
            # Who goes away meanwhile leaves no half of a writing to the next.
            number = await asyncio.shield(self._writing)
        except FairboxError as error:  # there are no steps yet, or a file can't be read or written
            return web.Response(status=503, text=f"{error}\n", headers={"Refresh": _AGAIN_S})
        raise web.HTTPFound(f"/{number}/{_PAGE}")

    async def _stamp(self, _: web.Request) -> web.StreamResponse:
        return web.Response(text=await asyncio.to_thread(_stamp_of, self._run))

    async def _file(self, asked: web.Request) -> web.StreamResponse:
        path = self._folder / asked.match_info["number"] / asked.match_info["file"]
        if not path.is_file():
            raise web.HTTPFound("/")
        return web.FileResponse(path, headers={"Cache-Control": "no-store"})

    async def _current(self) -> int:
        """Number of a writing that has all there is, or of the last one, if the last one has just been made."""
        stamp = await asyncio.to_thread(_stamp_of, self._run)
        if self._written:
            number, shown = self._written[-1]
            if shown == stamp or self._clock.now() < self._rest_until:
                return number
        began, number = self._clock.now(), self._written[-1][0] + 1 if self._written else 1
        to = self._folder / str(number) / _PAGE
        await asyncio.to_thread(write_page, self._run, to, self._tokenizer, live=stamp)
        self._written.append((number, stamp))
        self._rest_until = self._clock.now() + (self._clock.now() - began)
        for old, _ in self._written[:-_KEPT]:
            await asyncio.to_thread(shutil.rmtree, self._folder / str(old))
        del self._written[:-_KEPT]
        return number


@web.middleware
async def _own_host(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    if not is_loopback(request.host.rpartition(":")[0].strip("[]") or request.host):
        raise web.HTTPForbidden(text="the page is asked for by the address that was printed, on this machine\n")
    return await handler(request)


def _stamp_of(run: Path) -> str:
    """Text that changes with what the page of a run would show."""
    facts = list[str]()
    for path in files_of(run):
        try:
            found = path.stat()
        except FileNotFoundError:
            continue
        facts.append(f"{path.name} {found.st_size} {found.st_mtime_ns}")
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()
