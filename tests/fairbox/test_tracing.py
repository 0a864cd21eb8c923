"""Trace context and sampling, and that tracing costs nothing where it is off."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbox import tracing
from fairbox.errors import ConfigError
from fairbox.histogram import Histogram
from fairbox.telemetry import TelemetrySettings, open_traces

IDS = st.text("0123456789abcdef", min_size=32, max_size=32)


@pytest.mark.parametrize("module", ["limiter", "executor_service", "rollout.loop", "fairbox.telemetry"])
def test_nothing_is_imported_while_tracing_is_off(module: str) -> None:
    program = f"import sys, {module}; sys.exit(any(name.startswith('opentelemetry') for name in sys.modules))"
    assert subprocess.run([sys.executable, "-c", program], timeout=60, check=False).returncode == 0


def test_what_is_off_makes_nothing() -> None:
    assert tracing.span("a", bucket="x") is tracing.span("b")
    with tracing.trajectory_span("rollout.trajectory", "a" * 32) as span, tracing.span("below"):
        span.set(state="x")
        assert (tracing.carried(), tracing.traceparent(), tracing.current_ids()) == ((), "", None)
        assert tracing.record("x", seconds=1.0) is None
    assert tracing.statistics() is None


@given(IDS, st.text("0123456789abcdef", min_size=16, max_size=16), st.booleans())
def test_trace_context_survives_being_written(trace_id: str, span_id: str, traced: bool) -> None:
    parent = tracing.Parent(trace_id, span_id, traced)
    valid = int(trace_id, 16) and int(span_id, 16)
    assert tracing.parse(parent.traceparent) == (parent if valid else None)


@pytest.mark.parametrize(
    "text",
    ["", "00", "x" * 55, f"00-{'A' * 32}-{'b' * 16}-01", f"ff-{'a' * 32}-{'b' * 16}-01", f"00-{'a' * 32}-{'b' * 16}"],
)
def test_what_is_no_trace_context_is_no_parent(text: str) -> None:
    assert tracing.parse(text) is None


def test_a_later_version_of_trace_context_is_read() -> None:
    assert tracing.parse(f"01-{'a' * 32}-{'b' * 16}-03-more") == tracing.Parent("a" * 32, "b" * 16, traced=True)


@given(IDS)
def test_more_ratio_traces_more(trajectory_id: str) -> None:
    kept = [tracing.sampled(trajectory_id, ratio / 10) for ratio in range(11)]
    assert kept == sorted(kept)
    assert (kept[0], kept[-1]) == (False, True)


def test_the_share_that_is_traced_is_the_ratio() -> None:
    assert 230 < sum(tracing.sampled(f"{number:032x}", 0.25) for number in range(1000)) < 270


@given(st.text(max_size=40))
def test_every_trajectory_has_a_valid_trace(trajectory_id: str) -> None:
    trace_id, span_id = tracing.trace_ids(trajectory_id)
    assert tracing.parse(tracing.Parent(trace_id, span_id, traced=True).traceparent) is not None


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
        with tracing.trajectory_span("rollout.trajectory", "a" * 32):
            assert (tracing.carried(), tracing.current_ids()) == ((), None)


async def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fairbox.otel", None)
    with pytest.raises(ConfigError, match=r"otlp_endpoint is set, which needs the extra `otel`: .*fairbox\[otel\]"):
        async with open_traces(TelemetrySettings(otlp_endpoint="http://127.0.0.1:9"), service="x", instance="y"):
            pass
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    async with open_traces(TelemetrySettings(), service="x", instance="y"):
        assert not tracing.enabled()


@given(st.lists(st.floats(0, 1e3)))
def test_a_histogram_counts_each_value_once(values: list[float]) -> None:
    histogram = Histogram((0.5, 10.0))
    for value in values:
        histogram.observe(value)
    half, ten, every = (count for _, count in histogram.buckets())
    assert (half, ten) == (sum(value <= 0.5 for value in values), sum(value <= 10 for value in values))
    assert every == histogram.count == len(values)
    assert histogram.sum == pytest.approx(sum(values))
