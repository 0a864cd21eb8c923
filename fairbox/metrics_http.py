"""The HTTP server below `fairbox.metrics`: a thread for each scrape, and few of them.

Invariants: there are at most `_MOST` connections, and each is over when nothing is said for `_SILENT_S`. Whoever
opens thousands takes neither threads nor descriptors from the service. Nothing of a connection is on stderr.
"""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable
from socketserver import TCPServer, ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

__all__ = ["ScrapeServer"]

_MOST = 32
"""Connections at once; a Prometheus has one."""
_SILENT_S = 10.0
"""As long as Prometheus waits by default."""
_LOG = logging.getLogger("fairbox.metrics")


class _Handler(WSGIRequestHandler):
    def setup(self) -> None:
        super().setup()
        self.connection.settimeout(_SILENT_S)

    def log_message(self, format: str, *args: Any) -> None:
        """Scrapes are not logged."""


class ScrapeServer(ThreadingMixIn, WSGIServer):
    """Listens at once. OSError for an address that can't be had. `serve_forever()` runs in a thread."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, host: str, port: int, app: Callable[..., Any]) -> None:
        self._room = threading.Semaphore(_MOST)
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, port), _Handler)
        self.set_app(app)

    def server_bind(self) -> None:
        """Without the question for the name of this machine, which a resolver can leave unanswered."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])
        self.setup_environ()

    def process_request(self, request: Any, client_address: Any) -> None:
        """In a thread of its own, or not at all."""
        if not self._room.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:  # no thread can be had
            self._room.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Gives the place back."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Connections break, and time out."""
        _LOG.debug("a connection for figures has broken", exc_info=True)
