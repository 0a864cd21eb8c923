"""A collector of traces on loopback, which reads OTLP requests and keeps their spans in memory.

Needs the extra `otel`, whose messages it reads with.
"""

from __future__ import annotations

import contextlib
import gzip
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True, slots=True)
class SeenSpan:
    """A span that has arrived."""

    service: str
    name: str
    trace_id: str
    span_id: str
    parent_id: str
    began_s: float
    ended_s: float
    failed: str
    attributes: dict[str, Any]


@dataclass
class Collector:
    """Collector of the spans that have arrived."""

    url: str
    spans: list[SeenSpan] = field(default_factory=list)
    requests: int = 0
    hang: threading.Event = field(default_factory=threading.Event)
    """While it is set, requests are taken and not answered."""
    released: threading.Event = field(default_factory=threading.Event)

    def named(self, name: str) -> list[SeenSpan]:
        return [span for span in self.spans if span.name == name]

    def children(self, parent: SeenSpan) -> list[SeenSpan]:
        """In the order of their beginnings."""
        below = [span for span in self.spans if (span.trace_id, span.parent_id) == (parent.trace_id, parent.span_id)]
        return sorted(below, key=lambda span: span.began_s)


@contextlib.contextmanager
def collecting() -> Iterator[Collector]:
    """A collector that answers at once, unless `hang` is set."""
    from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as messages

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            if self.path != "/v1/traces":
                self.send_error(404)
                return
            collector.requests += 1
            if collector.hang.is_set():
                collector.released.wait(30)
                return
            collector.spans += _spans(messages.ExportTraceServiceRequest.FromString(body))
            self.send_response(200)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    collector = Collector(f"http://127.0.0.1:{server.server_address[1]}")
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield collector
    finally:
        collector.released.set()
        server.shutdown()
        server.server_close()
        thread.join(10)


def _spans(request: Any) -> list[SeenSpan]:
    return [
        SeenSpan(
            service=_attributes(each.resource.attributes).get("service.name", ""),
            name=span.name,
            trace_id=span.trace_id.hex(),
            span_id=span.span_id.hex(),
            parent_id=span.parent_span_id.hex(),
            began_s=span.start_time_unix_nano / 1e9,
            ended_s=span.end_time_unix_nano / 1e9,
            failed=span.status.message if span.status.code == 2 else "",
            attributes=_attributes(span.attributes),
        )
        for each in request.resource_spans
        for scope in each.scope_spans
        for span in scope.spans
    ]


def _attributes(pairs: Any) -> dict[str, Any]:
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in pairs}
