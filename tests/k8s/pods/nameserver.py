"""The cluster's name server: answers A queries from a table that the node keeps, over UDP. What it does not know does
not exist, and a name has IPv4 addresses only."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Mapping
from types import TracebackType
from typing import cast

__all__ = ["NameServer", "answer"]

_A, _IN = 1, 1
_TTL_S = 5
"""CoreDNS' default for names of a cluster."""
_NO_SUCH_NAME = 3


def answer(query: bytes, table: Mapping[str, tuple[str, ...]]) -> bytes | None:
    """The reply to a query with one question; None: it is none. `table`: full names, lower case, no dot at the end."""
    if len(query) < 17 or query[2] & 0x80:
        return None
    labels, at = [], 12
    while at < len(query) and query[at]:
        labels.append(query[at + 1 : at + 1 + query[at]].decode("ascii", "replace"))
        at += 1 + query[at]
    question, kind = query[12 : at + 5], int.from_bytes(query[at + 1 : at + 3], "big")
    addresses = table.get(".".join(labels).lower())
    given = addresses if addresses and kind == _A else ()
    code = 0 if addresses is not None else _NO_SUCH_NAME
    # Authoritative; recursion as it was asked for, and available.
    flags = 0x8480 | (query[2] & 1) << 8 | code
    head = query[:2] + struct.pack(">HHHHH", flags, 1, len(given), 0, 0)
    records = (
        struct.pack(">HHHIH", 0xC00C, _A, _IN, _TTL_S, 4) + bytes(int(part) for part in address.split("."))
        for address in given
    )
    return head + question + b"".join(records)


class _Protocol(asyncio.DatagramProtocol):
    def __init__(self, server: NameServer) -> None:
        self._server = server
        self._transport: asyncio.DatagramTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # The event loop's own class is no subclass of it, in name only.
        self._transport = cast("asyncio.DatagramTransport", transport)

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        reply = answer(data, self._server.table)
        self._server.queries += 1
        if reply is not None and self._transport is not None:
            self._transport.sendto(reply, addr)


class NameServer:
    """`async with NameServer(address) as names: names.table = {...}`. Port 53 of an address of this machine."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.table: Mapping[str, tuple[str, ...]] = {}
        self.queries = 0
        self._transport: asyncio.DatagramTransport | None = None

    async def __aenter__(self) -> NameServer:
        loop = asyncio.get_running_loop()
        self._transport, _ = await loop.create_datagram_endpoint(lambda: _Protocol(self), local_addr=(self.address, 53))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._transport is not None:
            self._transport.close()
