"""Trace context and sampling, and that tracing costs nothing where it is off."""

from __future__ import annotations

import subprocess
import sys
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import Decision
from opentelemetry.trace import INVALID_SPAN, StatusCode, Tracer, use_span

from fairbox.errors import ConfigError
from fairbox.telemetry import tracing
from fairbox.telemetry.otel import TrajectoryRatio, make_provider
from fairbox.telemetry.program import TelemetrySettings, open_traces

IDS = st.text("0123456789abcdef", min_size=32, max_size=32)


def sampled(trace_id: int, ratio: float) -> bool:
    return TrajectoryRatio(ratio).should_sample(None, trace_id, "").decision is Decision.RECORD_AND_SAMPLE


def parent_id(span: ReadableSpan) -> int:
    return span.parent.span_id if span.parent else 0


@pytest.mark.parametrize("module", ["limiter", "executor_service", "rollout.loop", "fairbox.telemetry.program"])
def test_nothing_is_imported_while_tracing_is_off(module: str) -> None:
    program = f"import sys, {module}; sys.exit(any(name.startswith('opentelemetry.sdk') for name in sys.modules))"
    assert subprocess.run([sys.executable, "-c", program], timeout=60, check=False).returncode == 0


def test_what_is_off_makes_nothing() -> None:
    assert tracing.span("a", bucket="x") is tracing.span("b")
    assert tracing.trajectory_span("a" * 32) is INVALID_SPAN
    with tracing.call_span("a", f"00-{'a' * 32}-{'b' * 16}-01") as span, tracing.span("below"):
        assert span is INVALID_SPAN
        assert (tracing.carried(), tracing.traceparent(), tracing.current_ids()) == ((), "", None)
        assert tracing.record("x", seconds=1.0) is INVALID_SPAN
    assert tracing.statistics() is None


@pytest.mark.parametrize("traced", [False, True])
def test_trace_context_survives_being_written(spans: InMemorySpanExporter, traced: bool) -> None:
    written = f"00-{'a' * 32}-{'b' * 16}-{traced:02d}"
    with use_span(tracing.parse(written)):
        assert tracing.carried() == (("traceparent", written),)
        assert tracing.traceparent() == (written if traced else "")


def test_a_trajectory_and_what_goes_on_after_it_are_one_trace(spans: InMemorySpanExporter) -> None:
    trajectory_id = uuid.uuid4().hex
    trajectory = tracing.trajectory_span(trajectory_id, uid="u", parent_id="")
    with pytest.raises(ValueError, match="secret"), tracing.span("rollout.turn", trajectory):
        raise ValueError("secret")
    trajectory.end()
    with tracing.span("rollout.score", tracing.trajectory_span(trajectory_id), text="x" * 1000):
        assert tracing.record("below", seconds=2.0, why="lost").get_span_context().is_valid
    turn, root, below, score = spans.get_finished_spans()
    assert {span.context.trace_id for span in (turn, root, below, score)} == {int(trajectory_id, 16)}
    assert root.attributes == {"fairbox.trajectory_id": trajectory_id, "fairbox.uid": "u"}
    assert [parent_id(span) for span in (turn, score)] == [root.context.span_id] * 2
    assert (turn.status.status_code, turn.status.description, turn.events) == (StatusCode.ERROR, "ValueError", ())
    assert (parent_id(below), below.status.description) == (score.context.span_id, "lost")
    assert (below.end_time or 0) - (below.start_time or 0) == 2_000_000_000
    assert score.attributes == {"fairbox.text": "x" * 256}


def test_what_belongs_to_nothing_is_not_made_and_calls_that_come_in_are(spans: InMemorySpanExporter) -> None:
    with tracing.span("limiter.acquire"), tracing.call_span("in", ""), tracing.span("below"):
        pass
    with tracing.call_span("turn", "nonsense", "d" * 32):
        pass
    below, call, turn = spans.get_finished_spans()
    assert (below.name, call.parent, below.context.trace_id) == ("below", None, call.context.trace_id)
    assert (turn.context.trace_id, parent_id(turn)) == (int("d" * 32, 16), int("d" * 16, 16))


def test_nothing_is_traced_below_what_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    tracer: Tracer = make_provider(0.0).get_tracer("fairbox")
    monkeypatch.setattr(tracing, "_tracer", tracer)
    with tracing.span("rollout.turn", tracing.trajectory_span("a" * 32)), tracing.span("below") as below:
        assert not below.is_recording()
        ((_, carried),) = tracing.carried()
        assert (carried[:35], carried[-2:]) == (f"00-{'a' * 32}", "00")
        assert tracing.current_ids() is None


@pytest.mark.parametrize(
    "text",
    ["", "00", "x" * 55, f"00-{'A' * 32}-{'b' * 16}-01", f"ff-{'a' * 32}-{'b' * 16}-01", f"00-{'a' * 32}-{'b' * 16}"],
)
def test_what_is_no_trace_context_is_no_parent(text: str) -> None:
    assert not tracing.parse(text).get_span_context().is_valid


def test_a_later_version_of_trace_context_is_read() -> None:
    context = tracing.parse(f"01-{'a' * 32}-{'b' * 16}-03-more").get_span_context()
    assert (context.trace_id, context.span_id) == (int("a" * 32, 16), int("b" * 16, 16))
    assert context.trace_flags.sampled


@given(IDS)
def test_more_ratio_traces_more(trajectory_id: str) -> None:
    kept = [sampled(int(trajectory_id, 16), ratio / 10) for ratio in range(11)]
    assert kept == sorted(kept)
    assert (kept[0], kept[-1]) == (False, True)


def test_the_share_that_is_traced_is_the_ratio() -> None:
    assert 230 < sum(sampled(number, 0.25) for number in range(1000)) < 270
    assert 2200 < sum(sampled(uuid.uuid4().int, 0.25) for _ in range(10_000)) < 2800


@given(st.text(max_size=40))
def test_every_trajectory_has_a_valid_trace(trajectory_id: str) -> None:
    trace_id, span_id = tracing.trace_ids(trajectory_id)
    assert tracing.parse(f"00-{trace_id}-{span_id}-01").get_span_context().is_valid


@pytest.mark.parametrize("disabled", [{"OTEL_SDK_DISABLED": "true"}, {"OTEL_TRACES_EXPORTER": "none"}])
async def test_the_standard_variables_turn_traces_on_and_off(
    disabled: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    async with open_traces(TelemetrySettings(), service="x", instance="y"):
        assert tracing.enabled()
    for name, value in disabled.items():
        monkeypatch.setenv(name, value)
    async with open_traces(TelemetrySettings(), service="x", instance="y"):
        assert not tracing.enabled()


async def test_a_disabled_sdk_is_no_tracing_whoever_names_the_collector(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    async with open_traces(TelemetrySettings(otlp_endpoint="http://127.0.0.1:9"), service="x", instance="y"):
        with use_span(tracing.trajectory_span("a" * 32)):
            assert (tracing.carried(), tracing.current_ids()) == ((), None)


async def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk", None)
    sentence = r"^otlp_endpoint needs opentelemetry\.sdk: run `pip install 'fairbox\[otel\]'`"
    with pytest.raises(ConfigError, match=sentence):
        async with open_traces(TelemetrySettings(otlp_endpoint="http://127.0.0.1:9"), service="x", instance="y"):
            pass
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    async with open_traces(TelemetrySettings(), service="x", instance="y"):
        assert not tracing.enabled()
