"""The HTTP server of the gateway by itself: what can't be read as HTTP, silent connections, and room for bodies."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import gzip
import json
import logging
import math
import tempfile
import time
import zlib
from collections.abc import AsyncIterator
from typing import Any, cast

import aiohttp
import pytest
import requests
from aiohttp import web

from executor_service.gateway.handlers import handlers
from executor_service.gateway.server import Gateway
from fairbox.security import Role
from fairbox.security.tokens import Keyring
from tests.security import wire

LOOP_S = 0.01
"""Longest time for which one callback may keep a server's loop."""
TOKEN = "gateway-token-0123456789"
MOST = 100_000


@contextlib.asynccontextmanager
async def serving(waiting: asyncio.Event | None = None) -> AsyncIterator[Gateway]:
    """A gateway whose only path reads the body, and answers when nobody has to wait."""

    async def answer(request: web.Request) -> object:
        size = len(await request.read())
        if waiting is not None:
            await waiting.wait()
        return size

    with tempfile.NamedTemporaryFile("w") as file:
        file.write(TOKEN)
        file.flush()
        keyring = Keyring({Role.CLIENT: file.name})
        async with Gateway(
            "127.0.0.1:0", {("POST", "/run_code"): answer}, keyring=keyring, max_body_bytes=MOST
        ) as gateway:
            yield gateway


async def sent(gateway: Gateway, *lines: str, body: bytes = b"") -> str:
    """The status line that answers the first line and the headers."""
    host, _, port = gateway.address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write("\r\n".join([*lines, "", ""]).encode("latin-1") + body)
        return (await asyncio.wait_for(reader.readline(), 20)).decode().strip()
    finally:
        writer.close()


@pytest.mark.parametrize(
    "lines",
    [
        (f"POST /k/{TOKEN}/run code HTTP/1.1", "Host: x"),
        (f"POST /k/{TOKEN}/{'x' * 10_000} HTTP/1.1", "Host: x"),
        ("POST /run_code HTTP/1.1", "Host: x", f"Authorization: Bearer {TOKEN}\x01"),
        (f"P@ST /k/{TOKEN}/run_code HTTP/1.1", "Host: x"),
    ],
)
async def test_what_is_no_http_is_told_without_its_bytes(
    lines: tuple[str, ...], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with serving() as gateway:
        assert " 400 " in await sent(gateway, *lines)
    assert "sent what is no HTTP" in caplog.text
    assert TOKEN not in caplog.text


async def test_a_flood_of_what_is_no_http_is_no_flood_of_lines(caplog: pytest.LogCaptureFixture) -> None:
    async with serving() as gateway:
        for _ in range(20):
            await sent(gateway, "POST /run code HTTP/1.1", "Host: x")
    assert len(caplog.records) == 1


async def test_silent_connections_are_few_and_are_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fairbox.net.http_server._FIRST_S", 1.0)
    monkeypatch.setattr("fairbox.net.http_server._MOST", 50)
    request = ("POST /run_code HTTP/1.1", "Host: x", f"Authorization: Bearer {TOKEN}", "Content-Length: 0")
    async with serving() as gateway, contextlib.AsyncExitStack() as stack:
        beginning = b"POST /run_code HTTP/1.1\r\nHost: x\r\n"
        silent = await asyncio.to_thread(stack.enter_context, wire.many(gateway.address, 60, beginning))
        async with asyncio.timeout(20):
            while sum(wire.cut_off(connection) for connection in silent) < 10:  # too many
                await asyncio.sleep(0.05)
            while not all(wire.cut_off(connection) for connection in silent):  # too late
                await asyncio.sleep(0.05)
        assert " 200 " in await sent(gateway, *request)


async def test_a_connection_that_has_spoken_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fairbox.net.http_server._FIRST_S", 0.3)
    waiting = asyncio.Event()
    async with serving(waiting) as gateway, aiohttp.ClientSession() as session:
        url, headers = f"http://{gateway.address}/run_code", {"Authorization": f"Bearer {TOKEN}"}
        asyncio.get_running_loop().call_later(1.0, waiting.set)
        for _ in range(3):
            async with session.post(url, data=b"x", headers=headers) as answer:
                assert await answer.json() == 1
            await asyncio.sleep(0.5)


async def test_a_compressed_body_holds_the_room_that_it_may_unfold_to() -> None:
    waiting = asyncio.Event()
    headers = ("POST /run_code HTTP/1.1", "Host: x", f"Authorization: Bearer {TOKEN}", "Content-Encoding: deflate")
    body = zlib.compress(bytes(MOST - 1))
    async with serving(waiting) as gateway, asyncio.TaskGroup() as tasks:
        calls = [
            tasks.create_task(sent(gateway, *headers, f"Content-Length: {len(body)}", body=body)) for _ in range(20)
        ]
        while sum(call.done() for call in calls) < 4:
            await asyncio.sleep(0.01)
        waiting.set()
    answers = [call.result().split()[1] for call in calls]
    assert (answers.count("200"), answers.count("504")) == (16, 4)


def rows(*found: dict[str, Any]) -> bytes:
    given = [{"id": 1, "content": "x", "labels": {}, **row} for row in found]
    return json.dumps({"dataset": "code_contests", "config": {"provided_data": given}}).encode()


def bomb(mebibytes: int) -> bytes:
    """Returns gzip that unfolds to so many MiB: one part over and over, since to pack a gigabyte takes seconds."""
    packer = zlib.compressobj(1, wbits=31)
    first, again = (packer.compress(bytes(1 << 20)) + packer.flush(zlib.Z_FULL_FLUSH) for _ in range(2))
    return first + again * (mebibytes - 1)


LISTS = b"[" + b"[]," * 8_000_000 + b"1]"
GARBAGE, GZIP = b"no gzip" * 100, gzip.compress(rows({}) + bytes(range(256)) * 100)


@pytest.mark.parametrize(
    ("body", "encoding", "status", "detail"),
    [
        (rows({}), "", 200, ""),
        (gzip.compress(rows({})), "gzip", 200, ""),
        (zlib.compress(rows({})), "deflate", 200, ""),
        (LISTS, "", 422, "too many values"),
        (b"[" * 900 + b"]" * 900, "", 422, "nested too deeply"),
        (b'{"config":"' + b"\\n" * (15 << 20) + b'"}', "", 422, "Field required"),
        (rows({"labels": LISTS.decode()}), "", 400, "'labels' is text that is not JSON: the text has too many values"),
        (rows({"labels": "[" * 900 + "]" * 900}), "", 400, "nested too deeply"),
        (rows(*[{"labels": json.dumps({"a": [[]] * 900})} for _ in range(100)]), "", 200, ""),
        (rows(*[{"labels": json.dumps({"a": [[]] * 900})} for _ in range(5000)]), "", 400, "too many values"),
        (json.dumps({"dataset": "x", "config": {}, "results": [5] * 10_000}).encode(), "", 422, ""),
        (GARBAGE, "gzip", 400, "the body is not gzip"),
        (GARBAGE, "deflate", 400, "the body is not deflate"),
        (GZIP[:-20], "gzip", 400, "the body ends in the middle"),
        (b"", "gzip", 400, "the body ends in the middle"),
        (GARBAGE, "br", 400, "Content-Encoding is 'br', must be gzip or deflate"),
        (bomb(1024), "gzip", 413, "larger than this server takes"),
    ],
    ids=range(17),
)  # fmt: skip
async def test_no_body_costs_the_loop_much(
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    body: bytes,
    encoding: str,
    status: int,
    detail: str,
) -> None:
    """By the longest callback, in processor time of the loop's thread: a body of megabytes comes in many. Asked up to
    five times, the least counts: beside other work the same instructions take a processor longer."""
    nobody = cast("Any", None)
    longest_s, least_s, run = 0.0, math.inf, asyncio.Handle._run

    def timed(handle: asyncio.Handle) -> None:
        nonlocal longest_s
        began = time.thread_time()
        run(handle)
        longest_s = max(longest_s, time.thread_time() - began)

    routes = handlers(nobody, nobody, languages={"python"}, name="x", queue_s=1.0)
    path = "/get_metrics" if b"results" in body else "/get_prompts"
    async with Gateway("127.0.0.1:0", routes, keyring=None) as gateway:
        url, headers = f"http://{gateway.address}{path}", {"Content-Encoding": encoding} if encoding else {}
        for _ in range(5):
            gc.collect()
            gc.disable()  # what it takes depends on how many tests there were before
            monkeypatch.setattr(asyncio.Handle, "_run", timed)
            longest_s = 0.0
            try:
                answer = await asyncio.to_thread(requests.post, url, data=body, headers=headers, timeout=100)
            finally:
                gc.enable()
                monkeypatch.undo()
            least_s = min(least_s, longest_s)
            if least_s < LOOP_S:
                break
    assert (answer.status_code, detail in answer.text) == (status, True), answer.text[:500]
    assert 0 < least_s < LOOP_S
    assert "Traceback" not in caplog.text
