"""Every figure that docs, dashboard and alerts name is there in a real scrape, and every one that is there is named."""

from __future__ import annotations

import asyncio
import json
import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, cast

import grpc.aio
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from executor_service import ExecutorClient, ExecutorError, Limits
from fairbox.net.ports import free_port
from fairbox.telemetry.program import TelemetrySettings, open_traces
from limiter import LimiterClient
from limiter.v1 import limiter_pb2, limiter_pb2_grpc
from rollout.config import RolloutConfig
from rollout.engines import SamplingParams, find_model
from rollout.figures import open_figures, outcome_metrics, progress_metrics, service_metrics
from rollout.loop import AgentLoop, RolloutRunner, Schedule, Task, TrajectoryResult
from rollout.loop import Limits as LoopLimits
from rollout.metrics import RolloutMetrics
from rollout.rewards import Reward
from rollout.stack import LocalStack
from rollout.testing import ScriptedEngine
from rollout.tokens import ChatTemplate, HubTokenizer
from rollout.tools import Toolbox
from rollout.tools.code import CodeInterpreter, CodeInterpreterConfig
from tests.otlp_collector import collecting

if TYPE_CHECKING:
    from limiter.v1.limiter_pb2_grpc import LimiterAdminServiceAsyncStub

ROOT = Path(__file__).parents[2]
METRICS = (ROOT / "docs" / "reference" / "metrics.md").read_text(encoding="utf-8")
PAGE = (ROOT / "docs" / "how-to" / "operations.md").read_text(encoding="utf-8")
CALL = '<tool_call>\n{"name": "code_interpreter", "arguments": {"code": "print(6)"}}\n</tool_call>'
NAME = re.compile(r"\bfairbox_(?:limiter|executor|rollout)_[a-z0-9_]+\b")

Samples = dict[str, dict[tuple[tuple[str, str], ...], float]]


async def scraped(address: str) -> Samples:
    """Name -> labels -> value."""

    def read() -> str:
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=20) as answer:
            return str(answer.read(), "utf-8")

    found: Samples = {}
    for family in text_string_to_metric_families(await asyncio.to_thread(read)):
        for sample in family.samples:
            if sample.name.startswith("fairbox_") and not sample.name.endswith("_created"):
                name = re.sub(r"_(bucket|sum|count)$", "", sample.name) if family.type == "histogram" else sample.name
                found.setdefault(name, {})[tuple(sorted(sample.labels.items()))] = sample.value
    return found


async def given_back(stack: LocalStack) -> None:
    """Returns when the limiter knows of no lease: whoever gives one back does not wait for that."""
    async with grpc.aio.insecure_channel(stack.ports.limiter_admin) as channel, asyncio.timeout(20):
        stub = cast("LimiterAdminServiceAsyncStub", limiter_pb2_grpc.LimiterAdminServiceStub(channel))
        while (await stub.ListLeases(limiter_pb2.ListLeasesRequest())).leases:
            await asyncio.sleep(0.01)


async def busy(stack: LocalStack) -> None:
    """A bit of everything."""
    async with LimiterClient(stack.ports.limiter) as limiter, ExecutorClient(stack.ports.executor) as executor:
        for number in range(4):
            async with limiter.lease() as lease:
                assert (await executor.execute("print(1)", lease=lease, tenant=f"tenant {number}")).ok
        await executor.execute("raise SystemExit(3)", request_id="once")
        await executor.execute("raise SystemExit(3)", request_id="once")
        await executor.execute("while True: pass", limits=Limits(wall_time_s=0.3))
        async with executor.session() as session:
            await session.run("x = 1")
            await session.branch(2)
        async with limiter.lease() as stale:
            pass
        await given_back(stack)
        try:
            await executor.execute("print(1)", lease=stale)
        except ExecutorError:
            return
    raise AssertionError("a lease that was given back was bound")


async def rolled(stack: LocalStack) -> Samples:
    """The figures at the end of a run of four trajectories."""
    model = find_model("smollm2")
    tokenizer = HubTokenizer(model)
    engine = ScriptedEngine(tokenizer, [f"I call.\n{CALL}", "#### 6"], vocab_size=49152)
    ports, summary = stack.ports, RolloutMetrics()
    tasks = [Task(f"u{number}", ({"role": "user", "content": "What?"},), "6", "test", "here:1") for number in range(2)]
    async with CodeInterpreter(CodeInterpreterConfig(), executor=ports.executor, limiter=ports.limiter) as tool:
        loop = AgentLoop(engine, ChatTemplate(tokenizer), Toolbox([tool]), LoopLimits(), SamplingParams())

        def sink(result: TrajectoryResult, task: Task) -> None:
            summary.add(result)

        runner = RolloutRunner(
            loop,
            lambda task, result: Reward(1.0, {}),
            sink,
            schedule=Schedule(concurrency=2, samples_per_prompt=2),
            retries=0,
        )

        def collect() -> Iterator[Metric]:
            yield from progress_metrics(runner.statistics())
            yield from outcome_metrics(summary)
            yield from service_metrics(engine.statistics(), loop.tools.statistics())

        async with open_figures(RolloutConfig(metrics_listen="127.0.0.1:0"), collect) as address:
            await runner.run(tasks)
            return await scraped(address)


def named_in(text: str) -> set[str]:
    return set(NAME.findall(text))


async def test_what_is_named_is_scraped_and_what_is_scraped_is_named() -> None:
    limiter, executor = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
    with collecting() as collector:
        words = TelemetrySettings(otlp_endpoint=collector.url)
        stack = LocalStack(
            limiter_args=[f"metrics_listen={limiter}", *words.words()],
            executor_args=[f"metrics_listen={executor}", "metrics_tenants=2", *words.words()],
        )
        async with open_traces(words, service="rollout", instance="test"), stack:
            await busy(stack)
            of_rollout = await rolled(stack)
            of_limiter, of_executor = await scraped(limiter), await scraped(executor)
    _executor_counts(of_executor)
    assert of_rollout["fairbox_rollout_finished_total"] == {(): 4.0}
    assert of_rollout["fairbox_rollout_score_mean"] == {(): 1.0}
    assert of_rollout["fairbox_rollout_tool_calls_total"][(("outcome", "ok"),)] == 4
    there = {*of_limiter, *of_executor, *of_rollout}
    assert named_in(METRICS) == there
    monitoring = ROOT / "deploy" / "monitoring"
    dashboard = json.loads((monitoring / "dashboard.json").read_text())
    drawn = {re.sub(r"_bucket$", "", name) for panel in dashboard["panels"] for name in named_in(str(panel))}
    assert len(drawn) > 30
    alerts = (monitoring / "alerts.yaml").read_text()
    warned = {re.sub(r"_bucket$", "", name) for name in named_in(alerts)}
    assert len(warned) > 15
    assert not (drawn | warned | named_in(PAGE)) - there


def _executor_counts(found: Samples) -> None:
    runs = found["fairbox_executor_executions_total"]
    assert runs[(("cause", "policy"), ("outcome", "nonzero_exit"))] == 1
    assert runs[(("cause", "policy"), ("outcome", "time_limit"))] == 1
    assert found["fairbox_executor_deduplicated_total"] == {(): 1.0}
    assert found["fairbox_executor_refused_total"][(("reason", "lease_refused"),)] == 1
    tenants = {labels[0][1]: number for labels, number in found["fairbox_executor_tenant_executions_total"].items()}
    assert len(tenants) == 3
    assert sum(tenants.values()) == sum(runs.values())
    assert found["fairbox_executor_sessions_made_total"] == {(): 3.0}
    assert found["fairbox_executor_spans_total"].keys() == {
        (("result", result),) for result in ("exported", "failed", "dropped")
    }
