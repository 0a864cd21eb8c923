"""Puts the rollout service together: its data, engine, tools and ports, and their end."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import time
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path
from typing import Any, cast

from prometheus_client.metrics_core import Metric
from rich.console import Console

from executor_service import ExecutorClient
from fairbox.clock import MonotonicClock
from fairbox.loading import until_set
from fairbox.net.service_process import settle_memory
from fairbox.net.serving import GrpcServer, HealthServer, check_address, until_stopped
from fairbox.security import Role, ServerSecurity
from fairbox.version import installed_version
from rollout.build import check_prompts, environment_setup, longest_context, open_loop, open_run_journal, tool_specs
from rollout.config import TAKE_WEIGHTS
from rollout.dump import record_of
from rollout.engine_choice import require_engine
from rollout.engines.model_store import find_model
from rollout.engines.weights import WeightedEngine
from rollout.envs.base import Environment
from rollout.envs.registry import EnvironmentKind
from rollout.figures import open_figures, progress_metrics, service_metrics
from rollout.journal import NAME as JOURNAL
from rollout.journal import Durability, RunJournal
from rollout.loop.agent_loop import AgentLoop
from rollout.loop.runner import RunnerStatistics
from rollout.loop.scoring import Scoring
from rollout.rewards import RewardServices
from rollout.service.book import Place, TrajectoryBook
from rollout.service.config import ServiceConfig
from rollout.service.engine import EngineControl
from rollout.service.requests import ProblemSet, messages_of
from rollout.service.service import ACCESS, SERVICE_NAME, RolloutService
from rollout.service.store import TrajectoryStore
from rollout.service.trajectories import Player, Trajectories
from rollout.services import open_services
from rollout.tokens.tokenizer import ChatTemplateError
from rollout.v1 import rollout_pb2 as pb
from rollout.v1 import rollout_pb2_grpc

_LOG = logging.getLogger("fairbox.rollout")
_LAST_CALLS_S = 5.0
"""When the service ends, calls get so long to take their answers."""


async def serve(config: ServiceConfig, kind: EnvironmentKind, settings: Any, stop: asyncio.Event) -> None:
    """Serves until `stop` is set; what is under way then goes on when the service is started again. FairboxError in one
    sentence when it can't start, or can't keep what it accepts."""
    require_engine(config.engine.kind)
    environment = kind.make(settings, environment_setup(config, data=config.data, limit=config.n))
    security = ServerSecurity(config)
    guard = security.port(ACCESS, needs=Role.CLIENT, setting="listen")
    check_address(config.listen, insecure=config.insecure or guard.guarded)
    async with contextlib.AsyncExitStack() as stack:
        health = await stack.enter_async_context(
            HealthServer(config.health_listen, insecure=config.insecure, beside_guarded=security.guarded)
        )
        async with until_set(stop):
            store = await stack.enter_async_context(TrajectoryStore(Path(config.out), Durability(config.journal)))
            journal = await stack.enter_async_context(open_own_journal(config, settings, store))
            loop = await stack.enter_async_context(open_own_loop(config, environment, journal))
        tasks = list(environment.tasks())
        longest = longest_context(config, loop.engine.max_model_tokens)
        check_prompts(tasks, loop.chat, loop.tools.schemas, longest=longest)
        scoring = Scoring(
            environment.score,
            timeout_s=config.score_timeout_s,
            retries=config.infra_retries,
            clock=MonotonicClock(),
            journal=journal,
        )
        book = TrajectoryBook(concurrency=config.concurrency, max_trajectories=config.max_trajectories)
        control = await stack.enter_async_context(open_control(config, loop, store))
        player = player_of(config, loop, scoring, ProblemSet(tasks), control)
        trajectories = await stack.enter_async_context(Trajectories(store, book, player))
        service = RolloutService(
            trajectories,
            problems=player.problems,
            check_prompt=partial(refused, loop, longest),
            check_temperature=partial(check_temperature, config),
            engine=control,
            status=partial(status, config, loop, len(tasks), trajectories, security, time.monotonic()),
        )

        def collect() -> Iterator[Metric]:
            yield from progress_metrics(progress(trajectories, scoring))
            yield from service_metrics(loop.engine.statistics(), loop.tools.statistics())

        await stack.enter_async_context(open_figures(config, collect))
        server = GrpcServer(
            config.listen,
            add=lambda server: rollout_pb2_grpc.add_RolloutServiceServicer_to_server(service, server),
            services=[SERVICE_NAME],
            insecure=config.insecure,
            guard=guard,
        )
        await stack.enter_async_context(server)
        await health.set_ready(True)
        _LOG.info("listening on %s, %d trajectories go on", server.address, trajectories.totals.resumed)
        await until_stopped(stop, trajectories.failed.wait())
        await health.set_ready(False)
        trajectories.end_streams()
        await server.stop(_LAST_CALLS_S)
        if trajectories.failure is not None:
            raise trajectories.failure


def clear(folder: Path) -> None:
    """Deletes a journal of which nothing is needed. The lock of the store beside it says that nobody else uses it."""
    for end in ("", "-wal", "-shm"):
        Path(folder, JOURNAL + end).unlink(missing_ok=True)


@contextlib.asynccontextmanager
async def open_own_journal(config: ServiceConfig, settings: Any, store: TrajectoryStore) -> AsyncIterator[RunJournal]:
    """The journal of what is under way. Without any, settings may be other than before. Raises ConfigError."""
    if not any(entry.place is Place.QUEUED for entry in await store.entries()):
        await asyncio.to_thread(clear, Path(config.out))
    run = dataclasses.replace(config.run(), resume=True)
    async with open_run_journal(run, settings, Path(config.out)) as journal:
        assert journal is not None, "settings without a journal are refused"
        await journal.begin(None)
        yield journal


@contextlib.asynccontextmanager
async def open_own_loop(
    config: ServiceConfig, environment: Environment, journal: RunJournal
) -> AsyncIterator[AgentLoop]:
    """Everything that plays trajectories."""
    specs, model_dir = tool_specs(config, environment), find_model(config.model)
    async with contextlib.AsyncExitStack() as stack:
        console = Console(stderr=True)
        limiter, executor = await stack.enter_async_context(open_services(config, environment, specs, console))
        loop = await stack.enter_async_context(
            open_loop(config, model_dir, executor=executor, limiter=limiter, specs=specs, journal=journal)
        )
        client = await stack.enter_async_context(ExecutorClient(executor))
        environment.services = RewardServices(executor=client)
        settle_memory()
        yield loop


@contextlib.asynccontextmanager
async def open_control(
    config: ServiceConfig, loop: AgentLoop, store: TrajectoryStore
) -> AsyncIterator[EngineControl | None]:
    """The weights and pauses of the engine; None for one that takes no weights."""
    if config.engine.kind not in TAKE_WEIGHTS:
        yield None
        return
    async with EngineControl(cast("WeightedEngine", loop.engine), store) as control:
        yield control


def player_of(
    config: ServiceConfig, loop: AgentLoop, scoring: Scoring, problems: ProblemSet, control: EngineControl | None
) -> Player:
    """Parts that a trajectory is played with."""
    assert loop.journal is not None
    record = partial(record_of, step=config.step, model=loop.engine.model_name, decode=loop.chat.decode_plain)
    retries, seed = config.infra_retries, config.sampling.seed
    player = Player(loop.at, scoring, problems, record, loop.journal, retries, seed)
    return player if control is None else dataclasses.replace(player, age=control.age)


def refused(loop: AgentLoop, longest: int, prompt: pb.Prompt) -> str | None:
    """Why a prompt can't be played; None: it can."""
    messages = messages_of(prompt)
    try:
        length = len(loop.chat.prompt_ids(messages, loop.tools.schemas))
    except ChatTemplateError as error:
        return f"is refused by the chat template: {error}"
    return None if length < longest else f"has {length} tokens, which leaves none of {longest} to answer"


def check_temperature(config: ServiceConfig, temperature: float) -> None:
    """Raises FieldErrors for a temperature at which the engine's logprobs would not be exact."""
    config.engine.check_sampling(dataclasses.replace(config.sampling.params(), temperature=temperature))


def progress(trajectories: Trajectories, scoring: Scoring) -> RunnerStatistics:
    """The service's figures under the names that a run's have."""
    totals, counts = trajectories.totals, trajectories.counts().values()
    running = sum(each.running for each in counts)
    return RunnerStatistics(
        planned=totals.ended + running + sum(each.queued for each in counts),
        running=running,
        scoring=scoring.running,
        finished=totals.ended,
        masked=totals.masked,
        retried=totals.retried,
        scored_again=scoring.repeated,
        dropped=totals.cancelled,
    )


def status(
    config: ServiceConfig,
    loop: AgentLoop,
    problems: int,
    trajectories: Trajectories,
    security: ServerSecurity,
    began: float,
) -> pb.GetStatusResponse:
    """The state at this instant, without the tenants. `began`: of the monotonic clock."""
    totals = trajectories.totals
    return pb.GetStatusResponse(
        version=installed_version(),
        uptime_s=time.monotonic() - began,
        environment=config.env,
        problems=problems,
        model=loop.engine.model_name,
        weight_version=getattr(loop.engine, "weight_version", ""),
        engine_busy_s=loop.engine.statistics().busy_s,
        concurrency=config.concurrency,
        max_trajectories=config.max_trajectories,
        ended_total=totals.ended,
        masked_total=totals.masked,
        retried_total=totals.retried,
        acknowledged_total=totals.acknowledged,
        cancelled_total=totals.cancelled,
        resumed_total=totals.resumed,
        stale_total=totals.stale,
        security=security.facts(),
    )
