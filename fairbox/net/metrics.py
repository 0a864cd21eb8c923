"""A Prometheus endpoint on a port of its own, `/metrics`, for figures that belong to an event loop.

Invariants: figures are taken inside the loop, so that what is read is consistent; text is made and sent by threads of
its own, so that a slow reader costs the loop nothing; a loop that does not answer is reported as `up 0`.

`ScrapeServer`: there are at most `_MOST` connections, and each is over when nothing is said for `_SILENT_S`. Whoever
opens thousands takes neither threads nor descriptors from the service. Nothing of a connection is on stderr.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from socketserver import TCPServer, ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, ProcessCollector, disable_created_metrics, make_wsgi_app
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from fairbox.errors import FairboxError
from fairbox.net.serving import check_address
from fairbox.telemetry import tracing

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
"""Bounds of histograms of what takes from a millisecond (a warm sandbox) to minutes (a queue, a limit)."""
_ANSWER_WITHIN_S = 5.0
"""For the loop to give the figures; Prometheus itself gives up after 10 s by default."""


class MetricsServer:
    """`async with MetricsServer("127.0.0.1:9465", collect, prefix="fairbox_limiter")`: `collect` is called inside this
    loop for each scrape, and must not wait. Beside it there are `PREFIX_up`, `PREFIX_loop_delay_seconds` and the
    figures of the process.

    Port 0 takes a free one; `address` tells which. ConfigError for an address beyond loopback without `insecure`,
    FairboxError for a port that can't be had.
    """

    def __init__(
        self,
        listen: str,
        collect: Callable[[], Iterable[Metric]],
        *,
        prefix: str,
        insecure: bool = False,
        setting: str = "metrics_listen",
    ) -> None:
        check_address(listen, insecure=insecure, setting=setting)
        self.address = listen
        self._collect = collect
        self._prefix = prefix
        self._setting = setting
        self._server: tuple[ScrapeServer, threading.Thread] | None = None

    async def __aenter__(self) -> MetricsServer:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # another figure for each histogram
        registry = CollectorRegistry()
        registry.register(_Figures(self._collect, self._prefix, asyncio.get_running_loop()))
        ProcessCollector(registry=registry)
        host, _, port = self.address.rpartition(":")
        try:
            server = ScrapeServer(host.strip("[]"), int(port), make_wsgi_app(registry))
        except OSError as error:
            text = f"{self._setting}: can't listen on {self.address}: {error.strerror or error}"
            raise FairboxError(text) from None
        self._server = server, threading.Thread(target=server.serve_forever, name="figures", daemon=True)
        self._server[1].start()
        self.address = f"{host}:{server.server_port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._server is not None:
            (server, thread), self._server = self._server, None
            await asyncio.shield(asyncio.to_thread(_close, server, thread))


def tracing_metrics(prefix: str) -> Iterator[Metric]:
    """Counts of spans, by what became of them; nothing while tracing is off."""
    counts = tracing.statistics()
    if counts is None:
        return
    spans = CounterMetricFamily(f"{prefix}spans", "Spans by result: exported, failed or dropped.", labels=["result"])
    for result, number in (("exported", counts.exported), ("failed", counts.failed), ("dropped", counts.dropped)):
        spans.add_metric([result], number)
    yield spans


def _close(server: ScrapeServer, thread: threading.Thread) -> None:
    server.shutdown()
    server.server_close()
    thread.join(_ANSWER_WITHIN_S)


class _Figures(Collector):
    """Asks the loop from a thread of the endpoint."""

    def __init__(self, collect: Callable[[], Iterable[Metric]], prefix: str, loop: asyncio.AbstractEventLoop) -> None:
        self._collect = collect
        self._up = f"{prefix}_up"
        self._delay = f"{prefix}_loop_delay_seconds"
        self._loop = loop

    def describe(self) -> Iterable[Metric]:
        """Nothing ahead of time: registering would ask a loop that is busy with registering."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """The figures of this moment."""
        asked: concurrent.futures.Future[list[Metric]] = concurrent.futures.Future()

        def answer() -> None:
            if asked.set_running_or_notify_cancel():
                try:
                    asked.set_result(list(self._collect()))
                except Exception as error:
                    asked.set_exception(error)

        figures: list[Metric] | None = None
        asked_at = time.monotonic()
        try:
            self._loop.call_soon_threadsafe(answer)
            figures = asked.result(_ANSWER_WITHIN_S)
        except (TimeoutError, RuntimeError):  # busy for too long, or closed
            asked.cancel()
        delay_s = time.monotonic() - asked_at
        yield GaugeMetricFamily(self._up, "1: the figures are of this moment; 0: there are none.", figures is not None)
        yield GaugeMetricFamily(self._delay, "Time that the event loop took to answer this scrape.", delay_s)
        yield from figures or ()


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
