"""Starts real executor servers with their HTTP gateway, and calls it as plain HTTP clients do."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import requests

from fairbox.net.ports import free_port
from tests.executor.servers import Server, running

ANSWER_WITHIN_S = 100.0
"""Generous: nothing here is timed."""


@dataclass(frozen=True)
class GatewayServer:
    """A running server and the URL of its gateway."""

    server: Server
    url: str

    def post(self, path: str, body: Any = None, **arguments: Any) -> requests.Response:
        return requests.post(self.url + path, json=body, timeout=ANSWER_WITHIN_S, **arguments)

    def get(self, path: str, **arguments: Any) -> requests.Response:
        return requests.get(self.url + path, timeout=ANSWER_WITHIN_S, **arguments)

    def run(self, code: str, **fields: Any) -> dict[str, Any]:
        """The reply of /run_code, which must be a 200."""
        response = self.post("/run_code", {"code": code, "language": "python", **fields})
        assert response.status_code == 200, response.text
        reply: dict[str, Any] = response.json()
        return reply


@contextlib.contextmanager
def gateway(*settings: str, prefix: Sequence[str] = ()) -> Iterator[GatewayServer]:
    listen = f"127.0.0.1:{free_port()}"
    with running(f"gateway_listen={listen}", *settings, prefix=prefix) as server:
        yield GatewayServer(server, f"http://{listen}")
