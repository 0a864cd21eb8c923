"""One trace through all tiers: real limiter, real executor, real sandbox, a collector that reads OTLP."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import aiohttp
import pytest
from opentelemetry.sdk.trace.sampling import Decision
from opentelemetry.trace import use_span

from executor_service import ExecutorClient, InvalidRequest
from fairbox.net.ports import free_port
from fairbox.telemetry import tracing
from fairbox.telemetry.otel import TrajectoryRatio
from fairbox.telemetry.program import TelemetrySettings, open_traces
from limiter import LimiterClient
from rollout.engines import SamplingParams, find_model
from rollout.loop import AgentLoop, Limits, Task
from rollout.stack import LocalStack
from rollout.testing import ScriptedEngine
from rollout.tokens import ChatTemplate, HubTokenizer
from rollout.tools import Toolbox
from rollout.tools.code import CodeInterpreter, CodeInterpreterConfig
from tests.otlp_collector import Collector, SeenSpan, collecting
from tests.rollout.tiny_model import write_tiny

ROOT = Path(__file__).parents[2]
SECRET = "6 * 7 + 1234500"
CALL = f'<tool_call>\n{{"name": "code_interpreter", "arguments": {{"code": "print({SECRET})"}}}}\n</tool_call>'
TASK = Task("u", ({"role": "user", "content": "What?"},), "6", "test", "here:1")


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as it:
        yield it


@dataclass(frozen=True)
class Seen:
    """Spans of work with one stack of services that trace all, and what the work was."""

    collector: Collector
    whole: str
    """A trajectory that was to be traced."""
    halves: list[str]
    """Trajectories of which half were to be."""

    def of(self, name: str) -> set[str]:
        """Traces in which there is a span of this name."""
        return {span.trace_id for span in self.collector.named(name)}


@pytest.fixture(scope="module")
def seen() -> Iterator[Seen]:
    with collecting() as collector:
        yield Seen(collector, *asyncio.run(_work(collector.url)))


async def _work(url: str) -> tuple[str, list[str]]:
    settings = TelemetrySettings(otlp_endpoint=url)
    async with stack(settings) as services:
        async with open_traces(settings, service="rollout", instance="test"):
            (whole,) = await roll(services)
        async with open_traces(replace(settings, trace_ratio=0.5), service="rollout", instance="test"):
            halves = await roll(services, 12)
        async with ExecutorClient(services.ports.executor) as executor:
            await executor.execute("print(1)", request_id="alone", tenant="me")
            with pytest.raises(InvalidRequest):
                await executor.execute("print(1)", language="cobol")
    return whole, halves


def stack(settings: TelemetrySettings) -> LocalStack:
    words = settings.words()
    return LocalStack(limiter_args=words, executor_args=words)


async def roll(services: LocalStack, count: int = 1) -> list[str]:
    """Trajectories of two turns, the first with a call; their ids."""
    model = find_model("smollm2")
    tokenizer = HubTokenizer(model)
    engine = ScriptedEngine(tokenizer, [f"I call.\n{CALL}", "#### 6"], vocab_size=49152)
    ports = services.ports
    async with CodeInterpreter(CodeInterpreterConfig(), executor=ports.executor, limiter=ports.limiter) as tool:
        loop = AgentLoop(engine, ChatTemplate(tokenizer), Toolbox([tool]), Limits(), SamplingParams())
        results = [await loop.run(TASK, index=index, seed=1) for index in range(count)]
    assert all("1234542" in result.tool_calls[0].text for result in results)
    return [result.trajectory_id for result in results]


def only(spans: list[SeenSpan], name: str) -> SeenSpan:
    found = [span for span in spans if span.name == name]
    assert len(found) == 1, [span.name for span in spans]
    return found[0]


def test_one_trajectory_is_one_trace_through_all_tiers(seen: Seen) -> None:
    collector = seen.collector
    root = only([span for span in collector.spans if span.trace_id == seen.whole], "rollout.trajectory")
    assert root.parent_id == ""
    assert len({span.trace_id for span in collector.spans}) == len(seen.of("rollout.trajectory")) + 2, "and two calls"
    assert root.attributes["fairbox.stop_reason"] == "answered"
    first, second, released = collector.children(root)
    assert [first.name, second.name, released.name] == ["rollout.turn", "rollout.turn", "rollout.release"]
    assert [span.name for span in collector.children(first)] == ["rollout.generate", "rollout.tool_call"]
    assert [span.name for span in collector.children(second)] == ["rollout.generate"]
    call = only(collector.children(first), "rollout.tool_call")
    assert call.attributes["fairbox.outcome"] == "ok"
    acquire, execute = collector.children(call)
    assert (acquire.name, execute.name) == ("limiter.acquire", "executor.ExecuteCode")
    queue = only(collector.children(acquire), "limiter.queue")
    assert (queue.service, queue.attributes["fairbox.outcome"]) == ("limiter", "granted")
    handled = only(collector.children(execute), "ExecutorService/ExecuteCode")
    assert (handled.service, handled.attributes["fairbox.status"]) == ("executor", "OK")
    run = only(collector.children(handled), "executor.execution")
    assert run.attributes["fairbox.request_id"] == execute.attributes["fairbox.request_id"]
    assert "fairbox.tenant" not in run.attributes  # the call names none, and the server knows of no token
    assert (run.attributes["fairbox.outcome"], run.attributes["fairbox.cause"]) == ("FINISHED", "POLICY")
    phases = collector.children(run)
    assert [span.name for span in phases] == [f"executor.{name}" for name in ("queue", "setup", "run", "collect")]
    assert phases[0].began_s >= run.began_s - 1e-5
    assert phases[-1].ended_s <= run.ended_s + 1e-5
    assert abs(phases[2].ended_s - phases[2].began_s - run.attributes["fairbox.wall_s"]) < 1e-3
    for parent, child in ((root, first), (first, call), (call, execute), (execute, handled), (handled, run)):
        assert parent.began_s - 0.01 <= child.began_s <= child.ended_s <= parent.ended_s + 0.01
    told = [str(span.attributes) for span in collector.spans]
    assert not [each for each in told if any(secret in each for secret in ("1234500", "1234542", "print"))]


def test_whole_trajectories_are_left_out(seen: Seen) -> None:
    ratio = TrajectoryRatio(0.5)
    traced = {
        each
        for each in seen.halves
        if ratio.should_sample(None, int(each, 16), "").decision is Decision.RECORD_AND_SAMPLE
    }
    alone = {call.trace_id for call in without_trajectory(seen)}
    for name in ("rollout.trajectory", "executor.execution", "limiter.queue"):
        assert seen.of(name) - alone == traced | {seen.whole}
    assert {span.trace_id for span in seen.collector.spans} - alone == traced | {seen.whole}


def without_trajectory(seen: Seen) -> list[SeenSpan]:
    """Calls of the executor that belong to none."""
    return [span for span in seen.collector.named("ExecutorService/ExecuteCode") if not span.parent_id]


def test_a_program_without_a_lease_shows_the_wait_of_its_executor(seen: Seen) -> None:
    collector = seen.collector
    calls = {span.attributes["fairbox.status"]: span for span in without_trajectory(seen)}
    assert calls.keys() == {"OK", "INVALID_ARGUMENT"}
    handled = calls["OK"]
    below = collector.children(handled)
    assert {span.name for span in below} == {"limiter.acquire", "executor.execution"}
    acquire = only(below, "limiter.acquire")
    assert only(collector.children(acquire), "limiter.queue").attributes["fairbox.outcome"] == "granted"


async def test_a_collector_that_hangs_costs_nothing_but_spans(collector: Collector) -> None:
    collector.hang.set()
    settings = TelemetrySettings(otlp_endpoint=collector.url)
    async with stack(settings) as services, ExecutorClient(services.ports.executor) as executor:
        for number in range(40):
            # Calls that waited for the collector would take seconds each, and all of them minutes.
            assert (await executor.execute("print(1)", call_timeout=20)).ok, number
        while not collector.requests:
            await asyncio.sleep(0.05)
        pid = services.pid("executor_service")
        os.kill(pid, signal.SIGTERM)
        async with asyncio.timeout(30):  # 3 s are for the last spans
            while services.ended() is None:
                await asyncio.sleep(0.05)
    assert collector.spans == []


async def test_closing_ends_in_time_whatever_the_collector_does(collector: Collector) -> None:
    collector.hang.set()
    settings = TelemetrySettings(otlp_endpoint=collector.url)
    async with open_traces(settings, service="rollout", instance="test"):
        for _ in range(20_000):
            tracing.trajectory_span(os.urandom(16).hex()).end()
        counts = tracing.statistics()
        began = time.monotonic()
    assert time.monotonic() - began < 10
    assert counts is not None
    assert counts.dropped > 10_000 - counts.failed  # bounded
    assert counts.waiting <= 8_192
    assert not tracing.enabled()


async def test_nobody_there_is_said_once_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    settings = TelemetrySettings(otlp_endpoint="http://127.0.0.1:9")
    async with (
        open_traces(settings, service="rollout", instance="test"),
        LimiterClient("127.0.0.1:9", unavailable_after=0.1) as limiter,
    ):
        trajectory = tracing.trajectory_span("a" * 32)
        with use_span(trajectory, end_on_exit=True), pytest.raises(Exception, match="not available"):
            async with asyncio.timeout(20), limiter.lease():
                pass
    said = [record for record in caplog.records if record.name == "fairbox.tracing"]
    assert len(said) <= 2
    assert any("took no spans" in record.message or "did not reach" in record.message for record in said)


@pytest.mark.timeout(700)
def test_the_command_line_traces_a_real_model(collector: Collector, tmp_path: Path) -> None:
    """A real one, if a small one."""
    model = write_tiny(find_model("smollm2"), tmp_path / "model", seed=0)
    few = [f"model={model}", "n=1", "limits.max_turns=2", "limits.max_turn_tokens=48", f"out={tmp_path / 'out'}"]
    words = [sys.executable, "-m", "rollout.cli", "rollout", "--up", f"otlp_endpoint={collector.url}", *few]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    root = only(collector.spans, "rollout.trajectory")
    assert root.trace_id in (tmp_path / "out" / "1.jsonl").read_text()
    assert {"rollout.turn", "rollout.generate", "rollout.score"} <= {span.name for span in collector.spans}


async def test_the_gateway_joins_the_trace_of_its_caller(collector: Collector) -> None:
    address, trace = f"127.0.0.1:{free_port()}", "c" * 32
    words = TelemetrySettings(otlp_endpoint=collector.url, trace_ratio=0.0).words()
    services = LocalStack(limiter_args=words, executor_args=[f"gateway_listen={address}", *words])
    async with services, aiohttp.ClientSession() as session:
        for traceparent in (f"00-{trace}-{'d' * 16}-01", f"00-{'e' * 32}-{'d' * 16}-00", "nonsense"):
            body = {"code": f"print({SECRET})", "language": "python"}
            headers = {"traceparent": traceparent}
            async with session.post(f"http://{address}/run_code", json=body, headers=headers) as answer:
                assert (await answer.json())["status"] == "Success"
    assert {span.trace_id for span in collector.spans} == {trace}
    handled = only(collector.spans, "POST /run_code")
    assert handled.parent_id == "d" * 16
    assert only(collector.children(handled), "executor.execution").attributes["fairbox.outcome"] == "FINISHED"
