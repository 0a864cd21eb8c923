"""`fairbox rollout`: tasks in; trajectories, a dump and a table out."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import os
import shlex
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from prometheus_client.metrics_core import Metric
from rich.console import Console

from executor_service import ExecutorClient
from fairbox.errors import EXIT_FAILURE, EXIT_INTERRUPTED, ConfigError
from fairbox.loading import Interrupted, load_apart, until_set
from fairbox.net.serving import run_service, until_stopped
from fairbox.telemetry.program import open_telemetry
from rollout.build import (
    check_prompts,
    environment_setup,
    longest_context,
    open_loop,
    open_run_journal,
    tool_specs,
)
from rollout.config import RolloutConfig
from rollout.dump import DumpWriter, record_of
from rollout.engine_choice import require_engine
from rollout.engines.base import EngineStatistics
from rollout.engines.model_store import find_model
from rollout.envs.base import Environment
from rollout.envs.registry import load_run
from rollout.figures import open_figures, outcome_metrics, progress_metrics, service_metrics
from rollout.journal import RunJournal
from rollout.loop.agent_loop import AgentLoop
from rollout.loop.results import TrajectoryResult
from rollout.loop.runner import Loop, RolloutRunner
from rollout.loop.task import Task
from rollout.metrics import RolloutMetrics
from rollout.ray.cluster import ray_cluster
from rollout.report import FinishedRun, closing_table, run_progress, write_summary
from rollout.rewards import RewardServices
from rollout.services import open_services
from rollout.tokens.chat import ChatTemplate
from rollout.tokens.drift import DriftCounter
from rollout.tools.registry import ToolSpec
from rollout.tools.statistics import ToolStatistics


@dataclass(frozen=True, slots=True)
class RolloutBackend:
    """A loop, and what a run shows of it. With workers the figures of engines and tools stay with them."""

    loop: Loop
    chat: ChatTemplate
    schemas: list[dict[str, Any]]
    """Schemas of the tools, as the prompt has them."""
    model_name: str
    max_model_tokens: int
    engine: Callable[[], EngineStatistics] = EngineStatistics
    tools: Callable[[], Mapping[str, ToolStatistics]] = dict
    drift: DriftCounter | None = None
    workers: Callable[[], str] = str
    """Summary of the workers; empty if there are none."""


@contextlib.asynccontextmanager
async def open_player(
    config: RolloutConfig,
    model_dir: Path,
    *,
    executor: str,
    limiter: str,
    specs: Sequence[ToolSpec],
    journal: RunJournal | None,
) -> AsyncIterator[RolloutBackend]:
    """As `config.ray` says. The services are `host:port`."""
    factory = partial(open_loop, config, model_dir, executor=executor, limiter=limiter, specs=specs)
    if config.ray:
        async with _over_ray(config, model_dir, factory) as backend:
            yield backend
        return
    async with factory(journal=journal) as loop:
        yield RolloutBackend(
            loop=loop,
            chat=loop.chat,
            schemas=loop.tools.schemas,
            model_name=loop.engine.model_name,
            max_model_tokens=loop.engine.max_model_tokens,
            engine=loop.engine.statistics,
            tools=loop.tools.statistics,
            drift=loop.drift,
        )


@contextlib.asynccontextmanager
async def _over_ray(
    config: RolloutConfig, model_dir: Path, factory: Callable[[], AbstractAsyncContextManager[AgentLoop]]
) -> AsyncIterator[RolloutBackend]:
    with ray_cluster(config.ray_address, what="--ray"):
        import ray

        from rollout.ray import RayLoops

        nodes = sum(node["Alive"] for node in ray.nodes())
        if config.up and nodes > 1:
            raise ConfigError(f"up is set, but the {nodes} machines of the cluster can't reach services on this one")
        chat = await load_apart(partial(config.chat.load, model_dir))
        async with RayLoops(factory, config.spread, chat=chat, sampling=config.sampling.params()) as loops:
            facts = await loops.facts()
            yield RolloutBackend(
                loop=loops,
                chat=chat,
                schemas=facts.schemas,
                model_name=facts.model_name,
                max_model_tokens=facts.max_model_tokens,
                workers=lambda: str(loops.statistics()),
            )


def main(argv: Sequence[str]) -> int:
    """Entry point; 0 when every trajectory ended, masked ones included, 130 after Ctrl-C."""
    config, kind, settings = load_run(
        RolloutConfig, prefix="ROLLOUT", prog="fairbox rollout", description=__doc__ or "", argv=argv
    )
    require_engine(config.engine.kind)
    setup = environment_setup(config, data=config.data, limit=config.n)
    environment = kind.make(settings, setup)
    specs = tool_specs(config, environment)
    model_dir = find_model(config.model)
    console = Console(file=sys.stderr)
    finished: list[bool] = []

    async def serve(stop: asyncio.Event) -> None:
        async with open_telemetry(config, service="rollout", instance=f"{socket.gethostname()}:{os.getpid()}"):
            try:
                finished.append(await _run(config, settings, environment, specs, model_dir, console, stop))
            except Interrupted:
                console.print("interrupted before the first rollout")

    code = run_service(serve, name="fairbox rollout")
    if code == EXIT_INTERRUPTED or finished == [True]:
        return code
    return code or EXIT_FAILURE


async def _run(
    config: RolloutConfig,
    settings: Any,
    environment: Environment,
    specs: tuple[ToolSpec, ...],
    model_dir: Path,
    console: Console,
    stop: asyncio.Event,
) -> bool:
    """Says whether every trajectory ended; False after a signal. Raises Interrupted for one before the first began."""
    async with contextlib.AsyncExitStack() as stack:
        async with until_set(stop):
            folder = out_folder(config)
            journal = await stack.enter_async_context(open_run_journal(config, settings, folder))
            limiter, executor = await stack.enter_async_context(open_services(config, environment, specs, console))
            console.print(f"loading {model_dir.name}" if config.engine.kind == "transformers" else "asking the servers")
            backend = await stack.enter_async_context(
                open_player(config, model_dir, executor=executor, limiter=limiter, specs=specs, journal=journal)
            )
            client = await stack.enter_async_context(ExecutorClient(executor))
            environment.services = RewardServices(executor=client)
        tasks = list(environment.tasks())
        check_prompts(tasks, backend.chat, backend.schemas, longest=longest_context(config, backend.max_model_tokens))
        if journal is not None:
            await journal.begin(folder / f"{config.step}.jsonl")
        dump = stack.enter_context(DumpWriter(folder, config.step))
        complete = await _roll(config, environment, tasks, backend, dump, console, stop, journal)
        if journal is not None:
            if complete:
                await journal.end()
            else:
                console.print(f"resume=true out={folder} goes on", soft_wrap=True)
        return complete


async def _roll(
    config: RolloutConfig,
    environment: Environment,
    tasks: list[Task],
    backend: RolloutBackend,
    dump: DumpWriter,
    console: Console,
    stop: asyncio.Event,
    journal: RunJournal | None,
) -> bool:
    metrics = RolloutMetrics()
    began = time.monotonic()
    planned = min(len(tasks), config.keep_groups or len(tasks)) * config.samples_per_prompt
    with run_progress(console, planned) as show:

        def sink(result: TrajectoryResult, task: Task) -> None:
            decode = backend.chat.decode_plain
            record = record_of(result, task, step=config.step, model=backend.model_name, decode=decode)
            dump.write(record)
            metrics.add(result, record["metrics"])
            show(metrics, backend.engine())

        runner = RolloutRunner(
            backend.loop,
            environment.score,
            sink,
            schedule=config.schedule(),
            retries=config.infra_retries,
            seed=config.sampling.seed,
            score_timeout_s=config.score_timeout_s,
            journal=journal,
        )

        def figures_now() -> Iterator[Metric]:
            yield from progress_metrics(runner.statistics())
            yield from outcome_metrics(metrics)
            yield from service_metrics(backend.engine(), backend.tools())

        async with open_figures(config, figures_now):
            complete = await until_stopped(stop, runner.run(tasks))
    drift = None if backend.drift is None else backend.drift.statistics()
    wall_s, engine, tools = time.monotonic() - began, backend.engine(), backend.tools()
    _report(FinishedRun(metrics, planned, wall_s, dump.path, engine, tools, drift, complete), backend)
    if not complete:
        console.print("interrupted; what had ended is in the dump")
    return complete


def _report(run: FinishedRun, backend: RolloutBackend) -> None:
    """Prints the table, and writes its figures into a file. Raises DumpError."""
    out = Console()
    out.print(closing_table(run))
    if workers := backend.workers():
        out.print(f"workers: {workers}")
    out.print(f"every token, mask and logprob: {run.dump} (docs/reference/dump.md describes it)", soft_wrap=True)
    out.print(f"the figures of this table, for programs: {write_summary(run)}", soft_wrap=True)
    out.print(f"the run as a page for a browser: fairbox report {shlex.quote(str(run.dump.parent))}", soft_wrap=True)
    out.print(f"check the dump against an independent forward pass: fairbox check-dump dump={run.dump}", soft_wrap=True)
    if backend.drift is not None and backend.drift.first_fault is not None:
        out.print(
            f"the chat template does not fit the tokens, first in trajectory {backend.drift.first_fault}: "
            "`fairbox check-template` says why",
            soft_wrap=True,
        )


def out_folder(config: RolloutConfig) -> Path:
    if config.out is not None:
        return Path(config.out)
    now = datetime.datetime.now().astimezone()
    return Path("out") / now.strftime("%Y%m%d-%H%M%S")
