"""A rollout service of tests: everything real but the engine, which says what a script says, and the tool."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import random
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import grpc.aio

from fairbox.clock import MonotonicClock
from fairbox.net.serving import GrpcServer
from fairbox.security import Role, ServerSecurity
from fairbox.security.server import ServerSecuritySettings
from rollout.dump import record_of
from rollout.engines import EngineUnavailable, GenerationRequest, SamplingParams
from rollout.journal import NAME, Durability, open_journal
from rollout.loop import AgentLoop, Task, TrajectoryResult
from rollout.loop.scoring import Scoring
from rollout.rewards import Reward
from rollout.service import RolloutClient, store
from rollout.service.app import refused
from rollout.service.book import TrajectoryBook
from rollout.service.engine import EngineControl
from rollout.service.requests import ProblemSet
from rollout.service.service import ACCESS, SERVICE_NAME, RolloutService
from rollout.service.store import TrajectoryStore
from rollout.service.trajectories import Player, Trajectories
from rollout.testing import ScriptedEngine, ScriptedTool
from rollout.tokens import ChatTemplate, HubTokenizer
from rollout.tools import Tool, Toolbox
from rollout.v1 import rollout_pb2 as pb
from rollout.v1 import rollout_pb2_grpc
from tests.rollout.scripted import NO_LIMITS, tool_call

PROBLEMS = [
    Task(f"u{number}", ({"role": "user", "content": f"What is {number}?"},), str(number), "test", f"here:{number}")
    for number in range(4)
]
VOCABULARY = 49152
"""Ids of the tests' tokenizer."""


class Echo(ScriptedTool):
    """Says what it is told, and keeps nothing."""

    repeatable = True

    @property
    def stateful(self) -> bool:
        return False


@dataclass
class Served:
    """A service in this process."""

    address: str
    trajectories: Trajectories
    engine: ScriptedEngine
    store: TrajectoryStore

    def held_disk(self) -> tuple[threading.Event, threading.Event]:
        """From now on tasks are kept only behind the second event; the first says that some wait for that."""
        waits, goes_on, guarded = threading.Event(), threading.Event(), self.store._guarded

        def held(work: Any) -> Any:
            if getattr(work, "func", None) is store._add:
                waits.set()
                assert goes_on.wait(60)
            return guarded(work)

        self.store._guarded = held  # type: ignore[method-assign]
        return waits, goes_on

    def client(self, **options: Any) -> RolloutClient:
        return RolloutClient(self.address, **{"unavailable_after": 10.0} | options)


@dataclass
class Tier:
    """A service over all of its processes: its folder, and counts."""

    tokenizer: HubTokenizer
    chat: ChatTemplate
    folder: Path
    delay_s: float = 0.0
    failing: float = 0.0
    """Share of the turns that the engine fails."""
    ending: float = 0.3
    """Share of the turns that are the last of their trajectory."""
    sampled: collections.Counter[tuple[int, ...]] = field(default_factory=collections.Counter)
    """Context and seed -> how often it was sampled from."""
    hold: asyncio.Event | None = None
    """Scores wait for it."""
    held: int = 0
    """Scores that do."""
    check_temperature: Callable[[float], None] = lambda temperature: None
    """Raises FieldErrors for one that the engine can't have."""
    problems: list[Task] = field(default_factory=lambda: [*PROBLEMS])
    tool: Tool = field(default_factory=lambda: Echo(lambda arguments: f"echo {arguments['text']}"))
    call: Callable[[random.Random], str] = lambda draws: tool_call("echo", text=str(draws.random()))
    """The call that a turn makes of its tool."""

    def script(self, request: GenerationRequest, _: int) -> str | Exception:
        ids, seed = request.input_ids, request.params.seed or 0
        self.sampled[(seed, *ids)] += 1
        draws = random.Random(hash(ids) ^ seed)
        if draws.random() < self.failing:
            return EngineUnavailable("the engine is away")
        if draws.random() < self.ending or len(ids) > 600:
            return f"#### {draws.randrange(9)}"
        return f"I call.\n{self.call(draws)}"

    async def score(self, task: Task, result: TrajectoryResult) -> Reward:
        if self.hold is not None:
            self.held += 1
            try:
                await self.hold.wait()
            finally:
                self.held -= 1
        return Reward(float(result.final_text == f"#### {task.ground_truth}"), {"turns": float(result.turns)})

    def engine(self) -> ScriptedEngine:
        """Engine of a process: in it, if no other method says otherwise."""
        return ScriptedEngine(self.tokenizer, self.script, vocab_size=VOCABULARY, delay_s=self.delay_s)

    @asynccontextmanager
    async def process(
        self,
        *,
        address: str = "127.0.0.1:0",
        concurrency: int = 4,
        max_trajectories: int = 100,
        retries: int = 1,
        security: ServerSecuritySettings | None = None,
        takes_weights: bool = True,
    ) -> AsyncIterator[Served]:
        """A process of the service, until the block is left."""
        goes_on = (self.folder / NAME).exists()
        async with (
            self.engine() as engine,
            TrajectoryStore(self.folder, Durability.PROCESS) as kept,
            open_journal(self.folder, Durability.PROCESS, None if goes_on else {}) as journal,
        ):
            assert journal is not None
            await journal.begin(None)
            loop = AgentLoop(engine, self.chat, Toolbox([self.tool]), NO_LIMITS, SamplingParams(), journal=journal)
            clock = MonotonicClock()
            scoring = Scoring(self.score, timeout_s=60, retries=retries, clock=clock, journal=journal)
            record = partial(record_of, step=1, model=engine.model_name, decode=self.chat.decode_plain)
            book = TrajectoryBook(concurrency=concurrency, max_trajectories=max_trajectories)
            guards = ServerSecurity(security or ServerSecuritySettings())
            guard = guards.port(ACCESS, needs=Role.CLIENT, setting="listen")

            async with EngineControl(engine, kept) as control, contextlib.AsyncExitStack() as stack:
                problems = ProblemSet(self.problems)
                player = Player(loop.at, scoring, problems, record, journal, retries, 7, control.age)
                trajectories = await stack.enter_async_context(Trajectories(kept, book, player))
                service = RolloutService(
                    trajectories,
                    problems=player.problems,
                    check_prompt=partial(refused, loop, 2000),
                    check_temperature=self.check_temperature,
                    engine=control if takes_weights else None,
                    status=lambda: pb.GetStatusResponse(weight_version=engine.weight_version),
                )

                def add(server: grpc.aio.Server) -> None:
                    rollout_pb2_grpc.add_RolloutServiceServicer_to_server(service, server)

                async with GrpcServer(address, add=add, services=[SERVICE_NAME], guard=guard) as server:
                    yield Served(server.address, trajectories, engine, kept)
                    trajectories.end_streams()


def essence(result: TrajectoryResult) -> Mapping[str, Any]:
    """All that must be the same, bit for bit: everything but ids that are drawn, and times."""
    calls = [(call.turn, call.name, call.raw, call.outcome, call.text) for call in result.tool_calls]
    return {
        "parts": result.parts,
        "messages": tuple(map(dict, result.messages)),
        "calls": calls,
        "stop": (result.state, result.stop_reason, result.cause, result.turns),
        "reward": result.reward,
        "uid": result.uid,
        "seed": result.sampling.seed,
    }
