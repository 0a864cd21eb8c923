"""`fairbox rollout`: tasks in; trajectories, a dump and a table out."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import json
import sys
import time
from collections.abc import AsyncIterator, Coroutine, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import grpc.aio
from rich.console import Console

from executor_service import ExecutorClient
from executor_service.v1 import executor_pb2, executor_pb2_grpc
from fairbox.channels import open_channel
from fairbox.errors import EXIT_FAILURE, EXIT_INTERRUPTED, FairboxError
from fairbox.serving import run_service
from rollout.build import tool_specs
from rollout.config import RolloutConfig
from rollout.data.rows import DataError
from rollout.dump import DumpWriter, record_of
from rollout.engines.model_store import find_model
from rollout.envs.base import Environment, EnvironmentSetup, EnvironmentWithServices, EnvironmentWithWorkspaces
from rollout.envs.gsm8k_prompts import EXAMPLES
from rollout.envs.settings import load_run
from rollout.loop.groups import RetryBudget
from rollout.loop.results import TrajectoryResult
from rollout.loop.runner import RolloutRunner
from rollout.loop.task import Task
from rollout.player import Player, open_player
from rollout.report import RunProgress, closing_table
from rollout.rewards import RewardServices, load_reward
from rollout.stack import LocalStack
from rollout.summary import RunSummary
from rollout.tokens.tokenizer import ChatTemplateError
from rollout.tools.executor_settings import ExecutorToolConfig
from rollout.tools.registry import ToolSpec, common_rate_limit

if TYPE_CHECKING:
    from executor_service.v1.executor_pb2_grpc import ExecutorServiceAsyncStub

__all__ = ["main"]

_PROBE_S = 5.0
"""Longest wait for services that should be there already."""


def main(argv: Sequence[str]) -> int:
    """Entry point; 0 when every trajectory ended, masked ones included, 130 after Ctrl-C."""
    config, kind, settings = load_run(
        RolloutConfig, prefix="ROLLOUT", prog="fairbox rollout", description=__doc__ or "", argv=argv
    )
    setup = EnvironmentSetup(
        data=None if config.data is None else Path(config.data),
        limit=config.n,
        reward=None if config.reward is None else load_reward(config.reward),
        tools=None if config.tools is None else tool_specs(config),
        max_turns=config.limits.max_turns,
        max_parallel_calls=config.max_parallel_calls,
    )
    environment = kind.make(settings, setup)
    specs = tool_specs(config, environment)
    model_dir = find_model(config.model)
    console = Console(file=sys.stderr)
    finished: list[bool] = []

    async def serve(stop: asyncio.Event) -> None:
        finished.append(await _run(config, environment, specs, model_dir, console, stop))

    code = run_service(serve, name="fairbox rollout")
    if code == EXIT_INTERRUPTED or finished == [True]:
        return code
    return code or EXIT_FAILURE


async def _run(
    config: RolloutConfig,
    environment: Environment,
    specs: tuple[ToolSpec, ...],
    model_dir: Path,
    console: Console,
    stop: asyncio.Event,
) -> bool:
    """Whether every trajectory ended; False after a signal."""
    async with contextlib.AsyncExitStack() as stack:
        limiter, executor = await stack.enter_async_context(open_services(config, environment, specs, console))
        console.print(f"loading {model_dir.name}" if config.engine.kind == "transformers" else "asking the servers")
        player = await stack.enter_async_context(
            open_player(config, model_dir, executor=executor, limiter=limiter, specs=specs)
        )
        if isinstance(environment, EnvironmentWithServices):
            client = await stack.enter_async_context(ExecutorClient(executor))
            environment.use(RewardServices(executor=client))
        tasks = list(environment.tasks())
        _check_prompts(tasks, player, config)
        dump = stack.enter_context(DumpWriter(out_folder(config), config.step))
        return await _roll(config, environment, tasks, player, dump, console, stop)


async def _roll(
    config: RolloutConfig,
    environment: Environment,
    tasks: list[Task],
    player: Player,
    dump: DumpWriter,
    console: Console,
    stop: asyncio.Event,
) -> bool:
    summary = RunSummary([example.code for example in EXAMPLES])
    began = time.monotonic()
    planned = min(len(tasks), config.keep_groups or len(tasks)) * config.samples_per_prompt
    with RunProgress(console, planned) as progress:

        def sink(result: TrajectoryResult, task: Task) -> None:
            decode = player.chat.decode_plain
            record = record_of(result, task, step=config.step, model=player.model_name, decode=decode)
            dump.write(record)
            summary.add(result, record["metrics"])
            progress.show(summary, player.engine())

        runner = RolloutRunner(
            player.loop,
            environment.score,
            sink,
            schedule=config.schedule(),
            retries=RetryBudget(config.infra_retries, config.infra_retries_total),
            seed=config.sampling.seed,
            score_timeout_s=config.score_timeout_s,
        )
        complete = await _unless(stop, runner.run(tasks))
    wall_s = time.monotonic() - began
    out = Console()
    drift = None if player.drift is None else player.drift.statistics()
    figures, tools = player.engine(), player.tools()
    out.print(
        closing_table(summary, planned=planned, wall_s=wall_s, dump=dump.path, engine=figures, tools=tools, drift=drift)
    )
    if workers := player.workers():
        out.print(f"workers: {workers}")
    out.print(f"every token, mask and logprob: {dump.path} (docs/rollout.md describes it)", soft_wrap=True)
    out.print(f"check it against an independent forward pass: fairbox check-dump dump={dump.path}", soft_wrap=True)
    if player.drift is not None and player.drift.first_fault is not None:
        out.print(
            f"the chat template does not fit the tokens, first in trajectory {player.drift.first_fault}: "
            "`fairbox check-template` says why",
            soft_wrap=True,
        )
    if not complete:
        console.print("interrupted; what had ended is in the dump")
    return complete


async def _unless(stop: asyncio.Event, work: Coroutine[Any, Any, None]) -> bool:
    """Runs `work` to its end, or cancels it when `stop` is set; whether it ended."""
    working, stopping = asyncio.ensure_future(work), asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        ended = working.done()
        for future in (working, stopping):
            future.cancel()
        await asyncio.gather(working, stopping, return_exceptions=True)
    if ended:
        working.result()
    return ended


@contextlib.asynccontextmanager
async def open_services(
    config: RolloutConfig, environment: Environment, specs: tuple[ToolSpec, ...], console: Console
) -> AsyncIterator[tuple[str, str]]:
    """(limiter, executor): those of the configuration, or a pair that lives as long as the run."""
    if not config.up:
        if any(isinstance(spec.config, ExecutorToolConfig) for spec in specs):
            await _probe(config.executor)
        yield config.limiter, config.executor
        return
    console.print("starting limiter and executor")
    limit = common_rate_limit(specs) or config.tool.rate_limit
    roots = environment.workspace_roots() if isinstance(environment, EnvironmentWithWorkspaces) else ()
    async with LocalStack(
        limiter_args=[f"buckets.code.max_in_flight={limit}"],
        executor_args=[f"workspace_roots={json.dumps([str(root) for root in roots])}"] if roots else [],
    ) as services:
        yield services.ports.limiter, services.ports.executor


async def _probe(target: str) -> None:
    """Raises FairboxError when no executor answers, before the model is loaded."""
    async with open_channel(target) as channel:
        stub = cast("ExecutorServiceAsyncStub", executor_pb2_grpc.ExecutorServiceStub(channel))
        try:
            await stub.GetStatus(executor_pb2.GetStatusRequest(), timeout=_PROBE_S)
        except grpc.aio.AioRpcError as error:
            raise FairboxError(
                f"no executor on {target}: {error.details()}; start one with `fairbox up`, or add --up to have "
                "limiter and executor started for this run"
            ) from None


def _check_prompts(tasks: list[Task], player: Player, config: RolloutConfig) -> None:
    """Raises DataError for a problem whose prompt the template refuses, or leaves no room for an answer."""
    longest = min(player.max_model_tokens, config.limits.max_model_tokens or player.max_model_tokens)
    for task in tasks:
        try:
            length = len(player.chat.prompt_ids(task.messages, player.schemas))
        except ChatTemplateError as error:
            raise DataError(f"{task.where}: {error}") from None
        if length >= longest:
            raise DataError(f"{task.where}: its prompt has {length} tokens, which leaves none of {longest} to answer")


def out_folder(config: RolloutConfig) -> Path:
    if config.out is not None:
        return Path(config.out)
    now = datetime.datetime.now().astimezone()
    return Path("out") / now.strftime("%Y%m%d-%H%M%S")
