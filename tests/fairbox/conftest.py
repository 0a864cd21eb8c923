"""Spans that tests make, kept in memory."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from fairbox.telemetry import tracing
from fairbox.telemetry.otel import make_provider


@pytest.fixture
def spans() -> Iterator[InMemorySpanExporter]:
    """Tracing is on, and what has ended is here."""
    exporter = InMemorySpanExporter()
    provider = make_provider(1.0)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracing.install(provider.get_tracer("fairbox"))
    yield exporter
    tracing.install(None)
