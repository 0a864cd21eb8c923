"""A rollout service over many lives on a disk that fails, and the trainer that uses it, on virtual time.

Real: the store, the journal and their SQLite, the book, the trajectories, the loop, the templates. Scripted: engine and
tools. Simulated: time, threads, the wire, and how each life ends. What is left of a life that was
killed ends later, on files that nobody reads any more.

The trainer does what the client does: it submits again what has not come whenever its stream begins, and passes over
what it has had.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import json
import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from rollout.dump import record_of
from rollout.engines import GenerationRequest, SamplingParams
from rollout.journal import NAME as JOURNAL
from rollout.journal import Durability, JournalError, RunJournal, begun, open_journal
from rollout.journal.entries import Opened, Sampled
from rollout.loop import AgentLoop, Task, TrajectoryResult
from rollout.loop.scoring import Scoring
from rollout.rewards import Reward
from rollout.service.app import clear
from rollout.service.book import Place, TrajectoryBook
from rollout.service.messages import trajectory_result
from rollout.service.requests import ProblemSet, checked
from rollout.service.store import TrajectoryStore
from rollout.service.trajectories import Player, Trajectories
from rollout.testing import ScriptedEngine, ScriptedTool
from rollout.tokens import ChatTemplate, HubTokenizer
from rollout.tools import Toolbox, ToolOutcome, ToolResponse
from rollout.v1 import rollout_pb2 as pb
from tests.limiter.sim.clock import MachineClock
from tests.limiter.sim.loop import Process
from tests.rollout.scripted import NO_LIMITS, tool_call
from tests.rollout.service.serving import PROBLEMS, essence
from tests.rollout.service.sim.disk import CutOff, DiskLoop, Fault, Volume

T = TypeVar("T")
_RIGHT = MachineClock(1.0, 0.0)
_RETRIES = 12
_LONGEST_S = 3600.0
"""Virtual seconds in which all must have come."""


class Gone(Exception):
    """The service has ended, or ends."""


@dataclass(frozen=True)
class Plan:
    """Parameters of one simulation."""

    seed: int
    faults: tuple[Fault, ...] = (Fault.KILLED,)
    """Each end of a life is one of these."""
    lives: int = 5
    """The last one goes on until everything has come."""
    trajectories: int = 6
    cancels: bool = False
    repeatable: bool = True
    """A call that may have run may run again."""

    @property
    def keeps(self) -> bool:
        """Says whether all that was committed is there again in each life."""
        return set(self.faults) <= {Fault.KILLED}


class Echo(ScriptedTool):
    """Says what it is told, and keeps nothing but a count."""

    def __init__(self, world: World) -> None:
        super().__init__(lambda arguments: f"echo {arguments['text']}")
        self.repeatable = world.plan.repeatable
        self._world = world

    @property
    def stateful(self) -> bool:
        return False

    async def execute(
        self, trajectory_id: str, arguments: Mapping[str, Any], *, time_limit_s: float | None = None
    ) -> ToolResponse:
        self._world.called[trajectory_id, str(arguments["text"])] += 1
        await asyncio.sleep(self._world.draws.uniform(0, 0.01))
        return ToolResponse(f"echo {arguments['text']}", ToolOutcome.OK)


class _VirtualClock:
    def now(self) -> float:
        return asyncio.get_running_loop().time()


@dataclass(eq=False)
class Life:
    """One process of the service."""

    process: Process
    trajectories: Trajectories | None = None
    waiting: set[asyncio.Future[Any]] = field(default_factory=set)
    """Answers that the trainer waits for."""
    calls: set[asyncio.Task[Any]] = field(default_factory=set)
    killed: asyncio.Event = field(default_factory=asyncio.Event)


class World:
    """One simulation; `violations` says what was wrong."""

    def __init__(self, plan: Plan, tokenizer: HubTokenizer, chat: ChatTemplate, root: Path) -> None:
        self.plan = plan
        self.draws = random.Random(plan.seed)
        self.tokenizer = tokenizer
        self.chat = chat
        self.loop = DiskLoop(self.draws)
        self.volume = Volume(root, self.draws)
        self.life: Life | None = None
        """The one that runs."""
        self.ends: list[Fault] = []
        self.violations: list[str] = []
        self.called: collections.Counter[tuple[str, str]] = collections.Counter()
        """(trajectory, what its tool was told) -> how often."""
        self.received: Mapping[str, Mapping[str, Any]] = {}
        """Trajectories that came, by id."""
        self.recorded = 0
        """Turns that the journal got, over all lives."""
        self._owners: dict[tuple[int, int], str] = {}
        self._unrecorded: collections.Counter[str] = collections.Counter()

    def run(self, wanted: Mapping[str, Mapping[str, Any]] | None = None) -> None:
        """From the first life to the last. `wanted`: what must come, by id."""
        trainer = Trainer(self, wanted)
        self.received = trainer.received
        try:
            self.loop.run_until_complete(self._whole(trainer))
        finally:
            self.loop.close()

    def say(self, violation: str) -> None:
        """Records what is wrong."""
        self.violations.append(f"{violation} (ends: {', '.join(self.ends) or 'none'})")

    async def call(self, do: Callable[[Trajectories], Awaitable[T]]) -> T:
        """The answer of the service to the trainer. Raises Gone, and what the service raises."""
        life = self.life
        if life is None or life.trajectories is None:
            raise Gone
        trajectories = life.trajectories
        answer: asyncio.Future[T] = self.loop.create_future()
        life.waiting.add(answer)

        async def answered() -> None:
            error: Exception
            try:
                result = await do(trajectories)
            except JournalError:
                error = Gone()
            except Exception as raised:
                error = raised
            else:
                if life is self.life and not answer.done():
                    answer.set_result(result)
                return
            if life is self.life and not answer.done():
                answer.set_exception(error)

        life.calls.add(self.loop.spawn(life.process, answered))
        try:
            return await answer
        finally:
            life.waiting.discard(answer)

    async def _whole(self, trainer: Trainer) -> None:
        has_all = self.loop.spawn(Process("trainer", _RIGHT), trainer.run)
        for number in range(self.plan.lives):
            if not has_all.done():
                await self._live(has_all, last=number == self.plan.lives - 1)
        if not has_all.done():
            self.say(f"never came: {sorted(trainer.missing)}")
            has_all.cancel()
        await asyncio.wait([has_all])
        if not has_all.cancelled():
            has_all.result()
        self._check()

    async def _live(self, has_all: asyncio.Task[None], *, last: bool) -> None:
        """One life of the service, to its end: at some step, or when all has come."""
        life = self.life = Life(Process("service", _RIGHT))
        self._end_at(life, None if last else self.draws.choice((self.draws.randrange(12), self.draws.randrange(120))))
        serving = self.loop.spawn(life.process, lambda: self._serve(life))
        killed = asyncio.ensure_future(life.killed.wait())
        await asyncio.wait([killed, serving, has_all], timeout=_LONGEST_S, return_when=asyncio.FIRST_COMPLETED)
        if serving.done():
            self.say(f"the service ended by itself: {serving.exception()!r}")
        self._kill(life)
        await asyncio.sleep(self.draws.uniform(0, 1))
        await self._bury(life, serving)

    def _end_at(self, life: Life, steps: int | None) -> None:
        """Has a life killed so many steps of its disks from now, before that step or behind it."""
        behind, left = self.draws.random() < 0.5, {"steps": steps, "remember": self.draws.randrange(1, 60)}

        def step(counts: bool) -> None:
            if not counts or self.life is not life:
                return
            left["remember"] -= 1  # type: ignore[operator]
            if left["remember"] == 0:
                self.volume.remember()
            if left["steps"] is not None:
                left["steps"] -= 1
                if left["steps"] < 0:
                    self._kill(life)
                    raise CutOff

        self.loop.before, self.loop.behind = partial(step, not behind), partial(step, behind)

    def _kill(self, life: Life) -> None:
        """From here on nothing of it has an effect."""
        if self.life is not life:
            return
        self.life = None
        self.loop.stop_process(life.process)
        self.ends.append(self.draws.choice(self.plan.faults))
        self.volume.after(self.ends[-1])
        for answer in life.waiting:
            if not answer.done():
                answer.set_exception(Gone())
        self._unrecorded.clear()
        life.killed.set()

    async def _bury(self, life: Life, serving: asyncio.Task[None]) -> None:
        """Lets what is left of it run out, on files that nobody reads any more."""
        self.loop.resume_process(life.process)
        for task in (serving, *life.calls):
            task.cancel()
        await asyncio.wait([serving, *life.calls])
        for task in (serving, *life.calls):
            if not task.cancelled():
                task.exception()

    async def _serve(self, life: Life) -> None:
        folder, plan = self.volume.folder, self.plan
        async with TrajectoryStore(folder, Durability.PROCESS) as store:
            if not any(entry.place is Place.QUEUED for entry in await store.entries()):
                clear(folder)
            goes_on = begun(folder / JOURNAL)
            async with open_journal(folder, Durability.PROCESS, None if goes_on else {}) as journal:
                assert journal is not None
                await journal.begin(None)
                self._watch(life, journal)
                engine = ScriptedEngine(self.tokenizer, partial(self._script, life), vocab_size=49152, delay_s=0.01)
                loop = AgentLoop(engine, self.chat, Toolbox([Echo(self)]), NO_LIMITS, SamplingParams(), journal=journal)
                scoring = Scoring(self._score, timeout_s=60, retries=_RETRIES, clock=_VirtualClock(), journal=journal)
                record = partial(record_of, step=1, model=engine.model_name, decode=self.chat.decode_plain)
                player = Player(loop.at, scoring, ProblemSet(PROBLEMS), record, journal, _RETRIES, 7)
                book = TrajectoryBook(concurrency=plan.trajectories // 2, max_trajectories=plan.trajectories)
                async with Trajectories(store, book, player) as trajectories:
                    life.trajectories = trajectories
                    await trajectories.failed.wait()
                    if trajectories.failure is not None:
                        raise trajectories.failure

    def _watch(self, life: Life, journal: RunJournal) -> None:
        """Counts the turns that are committed."""
        file = journal._file
        commit = file._commit

        def watched() -> None:
            entries = list(file._waiting)
            commit()
            for place, attempt, _, entry in entries if self.life is life else ():
                if isinstance(entry, Opened):
                    self._owners[place, attempt] = entry.trajectory_id
                if isinstance(entry, Sampled):
                    self.recorded += 1
                    self._unrecorded[self._owners.get((place, attempt), "")] = 0

        file._commit = watched  # type: ignore[method-assign]

    def _script(self, life: Life, request: GenerationRequest, _: int) -> str | Exception:
        if self.life is life:
            self._unrecorded[request.trajectory_id] += 1
            if self.plan.keeps and self._unrecorded[request.trajectory_id] > 1:
                self.say("a turn was sampled before the one before it was recorded")
        ids = request.input_ids
        draws = random.Random(hash(ids) ^ (request.params.seed or 0))
        if draws.random() < 0.3 or len(ids) > 500:
            return f"#### {draws.randrange(9)}"
        return "I call.\n" + tool_call("echo", text=str(draws.random()))

    async def _score(self, task: Task, result: TrajectoryResult) -> Reward:
        await asyncio.sleep(self.draws.uniform(0, 0.02))
        return Reward(float(result.final_text == f"#### {task.ground_truth}"), {"turns": float(result.turns)})

    def _check(self) -> None:
        """Looks at what must hold where nothing that was committed was lost."""
        if not self.plan.keeps:
            return
        twice = [each for each, times in self.called.items() if times > 1]
        if twice and not self.plan.repeatable:
            self.say(f"{len(twice)} calls that may have run were made again")


class Trainer:
    """Submits, takes, acknowledges and cancels, and looks at what it gets."""

    def __init__(self, world: World, wanted: Mapping[str, Mapping[str, Any]] | None) -> None:
        self._world = world
        self._wanted = wanted
        tasks = [
            pb.TrajectoryTask(id=f"t{number}", problem=number % len(PROBLEMS), seed=1000 + number)
            for number in range(world.plan.trajectories)
        ]
        self._tasks = dict(zip([task.id for task in tasks], checked(tasks, problems=ProblemSet(PROBLEMS)), strict=True))
        self._new = list(self._tasks)
        self._outstanding: dict[str, None] = {}
        """Submitted, and not come."""
        self.received: dict[str, Mapping[str, Any]] = {}
        self._attempts: dict[str, str] = {}
        self._unwanted: set[str] = set()
        """It has asked for their end."""
        self.done: set[str] = set()
        """Acknowledged or cancelled, and the service has said so."""

    @property
    def missing(self) -> set[str]:
        """Ids that are neither acknowledged nor cancelled."""
        return self._tasks.keys() - self.done

    async def run(self) -> None:
        """Until it has everything for good."""
        while self.missing:
            with contextlib.suppress(Gone):
                await self._stream()
            await asyncio.sleep(0.05)

    async def _stream(self) -> None:
        draws, life = self._world.draws, self._world.life
        box: asyncio.Queue[bytes | None] = asyncio.Queue()
        most, name, given = draws.randint(1, 3), str(draws.random()), set[str]()

        async def feed(trajectories: Trajectories) -> None:
            async for data in trajectories.stream("", most, name):
                if self._world.life is life:
                    self._came(pb.Trajectory.FromString(data).id)
                    box.put_nowait(data)
            raise Gone

        feeding = asyncio.create_task(self._world.call(feed))
        try:
            await asyncio.sleep(0)
            await self._submit(list(self._outstanding))
            while self.missing and self._world.life is life and not feeding.done():
                await self._act(box, given)
                if draws.random() < 0.05:
                    break
        finally:
            feeding.cancel()
            await asyncio.wait([feeding])
            if not feeding.cancelled():
                feeding.exception()

    async def _act(self, box: asyncio.Queue[bytes | None], given: set[str]) -> None:
        draws = self._world.draws
        action = draws.choice(("submit", "take", "take", "take", "acknowledge", "cancel"))
        if action == "submit" and self._new:
            some = [self._new.pop(0) for _ in range(min(len(self._new), draws.randint(1, 4)))]
            self._outstanding |= dict.fromkeys(some)
            await self._submit(some)
        elif action == "take":
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.5):
                    self._take(await box.get(), given)
        elif action == "acknowledge" and self.received:
            ids = draws.sample(sorted(self.received), draws.randint(1, len(self.received)))
            # On its way it may be lost: only what is answered is known to have come.
            await self._world.call(lambda service: service.acknowledge("", ids))
            self.done.update(ids)
        elif action == "cancel" and self._world.plan.cancels and self._outstanding:
            (each,) = draws.sample(sorted(self._outstanding), 1)
            self._unwanted.add(each)
            await self._world.call(lambda service: service.cancel("", [each]))
            del self._outstanding[each]
            self.done.add(each)

    async def _submit(self, ids: list[str]) -> None:
        for start in range(0, len(ids), 4):
            some = [self._tasks[each] for each in ids[start : start + 4]]
            _, gone = await self._world.call(lambda service, some=some: service.submit("", some))  # type: ignore[misc]
            if lost := set(gone) - self.received.keys() - self.done - self._unwanted:
                self._world.say(f"gone before they came: {sorted(lost)}")
            for each in gone:
                self._outstanding.pop(each, None)
            self.done |= self._unwanted & set(gone)  # it was cancelled, and the answer was lost

    def _came(self, each: str) -> None:
        if each in self.done and self._world.plan.keeps:
            self._world.say(f"{each} came although it was acknowledged or cancelled")

    def _take(self, data: bytes | None, given: set[str]) -> None:
        assert data is not None
        message = pb.Trajectory.FromString(data)
        each, keeps = message.id, self._world.plan.keeps
        found = essence(trajectory_result(message))
        if each in given:
            self._world.say(f"{each} came twice in one stream")
        if message.masked:
            self._world.say(f"{each} is masked: {message.record_json[:2000]}")
        wanted = self.received.get(each) or (self._wanted or {}).get(each)
        if wanted is not None and found != wanted:
            self._world.say(f"{each} is another one than it must be")
        attempt = json.loads(message.record_json)["request_id"]
        if keeps and self._attempts.setdefault(each, attempt) != attempt:
            self._world.say(f"{each} was played again after it had come")
        given.add(each)
        self.received.setdefault(each, found)
        self._outstanding.pop(each, None)
