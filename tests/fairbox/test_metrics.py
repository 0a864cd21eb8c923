"""The endpoint of figures and those who use it badly."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
import urllib.request

import pytest

from fairbox.net.metrics import MetricsServer
from tests.security import wire

ANYWHERE = "127.0.0.1:0"


def scraped(address: str) -> str:
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=20) as answer:
        return str(answer.read(), "utf-8")


async def test_connections_that_say_nothing_take_few_threads_and_are_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fairbox.net.metrics._SILENT_S", 1.0)
    before = threading.active_count()
    async with MetricsServer(ANYWHERE, list, prefix="x") as metrics, contextlib.AsyncExitStack() as stack:
        silent = await asyncio.to_thread(stack.enter_context, wire.many(metrics.address, 300))
        assert threading.active_count() - before < 60
        async with asyncio.timeout(20):
            while not all(wire.cut_off(connection) for connection in silent):
                await asyncio.sleep(0.1)
        assert "x_up 1.0" in await asyncio.to_thread(scraped, metrics.address)


async def test_a_connection_that_breaks_writes_nothing_to_stderr(capfd: pytest.CaptureFixture[str]) -> None:
    async with MetricsServer(ANYWHERE, list, prefix="x") as metrics:
        host, _, port = metrics.address.rpartition(":")
        for said in (b"", b"GET /metrics", b"nonsense\r\n\r\n"):
            with socket.create_connection((host, int(port)), timeout=10) as connection:
                connection.sendall(said)
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # ends with a reset
        assert "x_up 1.0" in await asyncio.to_thread(scraped, metrics.address)
    assert capfd.readouterr().err == ""


async def test_it_listens_on_addresses_of_version_6() -> None:
    async with MetricsServer("[::1]:0", list, prefix="x") as metrics:
        assert "x_up 1.0" in await asyncio.to_thread(scraped, metrics.address)
