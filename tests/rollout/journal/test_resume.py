"""Runs that are cut off at any step and go on: what comes out is what an undisturbed run gives, and no turn is sampled
twice."""

from __future__ import annotations

import asyncio
import collections
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from executor_service import Cause
from rollout.engines import EngineUnavailable, GenerationRequest, SamplingParams
from rollout.journal import NAME, Durability, JournalError, open_journal
from rollout.journal.entries import Calling, Entry, Opened, Rewarded, Sampled, Scored
from rollout.journal.store import JournalFile
from rollout.journal.trajectory_journal import CUT_OFF
from rollout.loop import AgentLoop, Limits, RolloutRunner, Schedule, Task, TrajectoryResult
from rollout.loop.condense import Condensation
from rollout.rewards import Reward
from rollout.testing import ScriptedEngine, ScriptedTool
from rollout.tokens import ChatTemplate, HubTokenizer
from rollout.tools import InfraError, Tool, Toolbox, ToolOutcome, ToolResponse
from tests.rollout.scripted import NO_LIMITS, tool_call

TASKS = [
    Task(f"u{number}", ({"role": "user", "content": f"What is {number}?"},), str(number), "test", f"here:{number}")
    for number in range(4)
]


class CutOff(BaseException):
    """The process ends here."""


@dataclass
class Cutting:
    """Cuts the process off at the entry of this number, before it is written or behind that; None: never."""

    at: int | None
    behind: bool = False
    appended: list[Entry] = field(default_factory=list)

    def cut(self, file: JournalFile) -> None:
        append = file.append

        async def cutting(place: int, attempt: int, number: int, entry: Entry, *, waits: bool = True) -> None:
            here = len(self.appended) == self.at
            self.appended.append(entry)
            if here and not self.behind:
                raise CutOff
            await append(place, attempt, number, entry, waits=waits)
            if here:
                raise CutOff

        file.append = cutting  # type: ignore[method-assign]


class Counter(Tool):
    """Keeps a number for each trajectory, and says it."""

    default_schema = replace(ScriptedTool.default_schema, name="count")
    parallel = False

    def __init__(self) -> None:
        super().__init__()
        self.live: dict[str, int] = {}
        self.executed: collections.Counter[str] = collections.Counter()
        self.drift = 0

    async def create(self, trajectory_id: str, **options: Any) -> None:
        self.live[trajectory_id] = self.drift

    async def execute(
        self, trajectory_id: str, arguments: Mapping[str, Any], *, time_limit_s: float | None = None
    ) -> ToolResponse:
        self.executed[trajectory_id] += 1
        self.live[trajectory_id] += 1
        return ToolResponse(f"number {self.live[trajectory_id]}", ToolOutcome.OK)

    async def calc_reward(self, trajectory_id: str) -> float:
        return float(self.live[trajectory_id])

    async def release(self, trajectory_id: str) -> None:
        self.live.pop(trajectory_id, None)


@dataclass
class World:
    """Surroundings of a run: an engine and tools, made anew with each process."""

    tokenizer: HubTokenizer
    chat: ChatTemplate
    folder: Path
    failing: float = 0.0
    """Share of the turns and calls that the service fails."""
    limits: Limits = NO_LIMITS
    condense: Condensation = field(default_factory=Condensation)
    sampled: collections.Counter[tuple[int, ...]] = field(default_factory=collections.Counter)
    """Context -> how often it was sampled from, over all processes."""
    scored: int = 0
    drift: int = 0
    repeatable: bool = False

    def script(self, request: GenerationRequest, _: int) -> str | Exception:
        ids = request.input_ids
        self.sampled[ids] += 1
        draws = random.Random(hash(ids) ^ (request.params.seed or 0))
        if draws.random() < self.failing:
            return EngineUnavailable("the engine is away")
        kind = draws.randrange(6)
        if kind < 2 or len(ids) > 900:
            return f"#### {draws.randrange(9)}"
        calls = [tool_call(draws.choice(["echo", "count"]), text=str(draws.random())) for _ in range(kind - 1)]
        return "\n".join(["I call.", *calls])

    def answer(self, arguments: Mapping[str, Any]) -> str | Exception:
        text = str(arguments["text"])
        failed = random.Random(text).random() < self.failing
        return InfraError("the tool is away") if failed else f"echo {text}"

    async def process(
        self, cutting: Cutting, *, goes_on: bool, retries: int = 1, **schedule: Any
    ) -> tuple[list[TrajectoryResult], Counter]:
        """Runs to the end, or to where it is cut off: CutOff, out of whatever groups."""
        results: list[TrajectoryResult] = []
        counter = Counter()
        counter.drift = self.drift
        echo = ScriptedToolWithoutState(self.answer)
        echo.repeatable = counter.repeatable = self.repeatable
        goes_on = goes_on and (self.folder / NAME).exists()  # else nothing had been recorded
        async with open_journal(self.folder, Durability.PROCESS, None if goes_on else {}) as journal:
            assert journal is not None
            cutting.cut(journal._file)
            engine = ScriptedEngine(self.tokenizer, self.script, vocab_size=49152)
            loop = AgentLoop(
                engine,
                self.chat,
                Toolbox([echo, counter]),
                self.limits,
                SamplingParams(),
                condense=self.condense,
                journal=journal,
            )
            runner = RolloutRunner(
                loop,
                self.score,
                lambda result, _: results.append(result),
                schedule=Schedule(**{"concurrency": 3, "samples_per_prompt": 2} | schedule),
                retries=retries,
                seed=7,
                journal=journal,
            )
            await runner.run(TASKS)
        return results, counter

    async def score(self, task: Task, result: TrajectoryResult) -> Reward:
        self.scored += 1
        await asyncio.sleep(0)
        return Reward(float(result.final_text == f"#### {task.ground_truth}"), {"turns": float(result.turns)}, {1: 0.0})


class ScriptedToolWithoutState(ScriptedTool):
    @property
    def stateful(self) -> bool:
        return False


@pytest.fixture
def world(
    tokenizer: HubTokenizer, chat: ChatTemplate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., World]:
    """Makes worlds in which an attempt that failed is soon followed by the next."""
    monkeypatch.setattr("rollout.loop.groups._RETRY_AFTER_S", 0.001)

    def make(name: str, **settings: Any) -> World:
        folder = tmp_path / name
        folder.mkdir()
        return World(tokenizer, chat, folder, **settings)

    return make


def essence(result: TrajectoryResult) -> tuple[Any, ...]:
    """All that must be the same, bit for bit: everything but ids that are drawn, and times."""
    calls = [(call.turn, call.name, call.raw, call.outcome, call.text, call.reward) for call in result.tool_calls]
    return (
        *(result.index, result.uid, result.parts, result.messages, calls, result.state, result.stop_reason),
        *(result.cause, result.turns, result.error, result.reward, result.tool_rewards, result.attempts),
    )


def by_index(results: list[TrajectoryResult]) -> list[tuple[Any, ...]]:
    return sorted(map(essence, results), key=lambda each: int(each[0]))


SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "failing": {"failing": 0.2},
    "condensed": {"condense": Condensation(at_tokens=300, keep_last=1)},
    "repeatable": {"repeatable": True},
    "limited": {"limits": replace(NO_LIMITS, max_turns=3, max_tool_calls=4, max_turn_tokens=60)},
}


async def cut_off(world: World, seed: int, retries: int) -> tuple[list[TrajectoryResult], int]:
    """The results of a run that is cut off again and again, and how often it was."""
    draws, cuts = random.Random(seed), 0
    while True:
        cutting = Cutting(draws.randrange(40 if cuts else 15) if cuts < 8 else None, behind=draws.random() < 0.5)
        try:
            return (await world.process(cutting, goes_on=cuts > 0, retries=retries))[0], cuts
        except BaseExceptionGroup as group:
            if group.split(CutOff)[1] is not None:
                raise
            cuts += 1


@pytest.mark.parametrize("kind", SETTINGS)
@pytest.mark.parametrize("seed", range(4))
async def test_a_run_that_is_cut_off_comes_to_what_an_undisturbed_one_does(
    world: Callable[..., World], kind: str, seed: int
) -> None:
    retries = 0 if kind in ("failing", "repeatable") else 15
    wanted, _ = await world("a", **SETTINGS[kind]).process(Cutting(None), goes_on=False, retries=retries)
    found, cuts = await cut_off(world("b", **SETTINGS[kind]), seed, retries)
    assert cuts > 0
    assert len({result.trajectory_id for result in found}) == len(found) == 8
    # Calls that ran while the process was cut off cost an attempt, and the next one plays the same trajectory.
    lost = {result.index for result in found if result.error == CUT_OFF}
    assert not lost or kind == "failing"
    for then, now in zip(by_index(wanted), by_index(found), strict=True):
        assert now[0] in lost or now[:-1] == then[:-1]
        assert kind != "repeatable" or now == then


async def recorded_turns(world: World) -> int:
    if not (world.folder / NAME).exists():
        return 0
    async with open_journal(world.folder, Durability.PROCESS, None) as journal:
        assert journal is not None
        entries = [await journal._file.entries(place, attempt) for place in range(8) for attempt in range(1, 8)]
    return sum(isinstance(entry, Sampled) for each in entries for entry in each)


async def test_no_recorded_turn_is_sampled_again_and_no_reward_computed_again(world: Callable[..., World]) -> None:
    """Cut off behind entries all along: afterwards each turn that is sampled is one that was not recorded."""
    whole = Cutting(None)
    await world("whole").process(whole, goes_on=False)
    for at in range(0, len(whole.appended), 7):
        here = world(f"cut-{at}")
        with pytest.raises(BaseExceptionGroup):
            await here.process(Cutting(at, behind=True), goes_on=False)
        before, recorded, scored = here.sampled.total(), await recorded_turns(here), here.scored
        cutting = Cutting(None)
        await here.process(cutting, goes_on=True, retries=5)
        assert here.sampled.total() - before == await recorded_turns(here) - recorded
        assert here.scored - scored == sum(isinstance(entry, Scored) for entry in cutting.appended)


async def test_calls_that_may_have_run_are_not_made_again(world: Callable[..., World]) -> None:
    here, whole = world("cut"), Cutting(None)
    await world("whole").process(whole, goes_on=False, concurrency=1)
    at = next(number for number, entry in enumerate(whole.appended) if isinstance(entry, Calling))
    with pytest.raises(BaseExceptionGroup):
        await here.process(Cutting(at, behind=True), goes_on=False, concurrency=1)
    results, _ = await here.process(Cutting(None), goes_on=True, retries=0, concurrency=1)
    (lost,) = [result for result in results if result.masked]
    assert (lost.cause, lost.error, lost.reward) == (Cause.INFRA, CUT_OFF, None)
    assert {call.outcome for call in lost.tool_calls if call.turn == lost.turns} == {ToolOutcome.INFRA}


async def test_tools_with_state_are_brought_to_where_they_were_or_the_trajectory_is_masked(
    world: Callable[..., World],
) -> None:
    whole = Cutting(None)
    wanted, _ = await world("whole").process(whole, goes_on=False, concurrency=1)
    counted = next(result for result in wanted if sum(call.name == "count" for call in result.tool_calls) > 1)
    at = sum(1 for entry in whole.appended[: whole.appended.index(first_end(whole, counted))])
    for drift in (0, 1):
        here = world(f"drift-{drift}")
        with pytest.raises(BaseExceptionGroup):
            await here.process(Cutting(at), goes_on=False, concurrency=1)
        here.drift = drift
        results, counter = await here.process(Cutting(None), goes_on=True, retries=0, concurrency=1)
        (result,) = [each for each in results if each.index == counted.index]
        if drift:
            assert result.masked
            assert result.error == "the state of tool count was lost, and its calls are answered otherwise now"
        else:
            assert essence(result) == essence(counted)
            assert counter.executed[result.trajectory_id] == sum(call.name == "count" for call in result.tool_calls)


def first_end(cutting: Cutting, result: TrajectoryResult) -> Entry:
    """The entry by which this trajectory ended, of a run that plays one at a time."""
    begun = next(
        number
        for number, entry in enumerate(cutting.appended)
        if isinstance(entry, Opened) and entry.trajectory_id == result.trajectory_id
    )
    return next(entry for entry in cutting.appended[begun:] if isinstance(entry, Rewarded))


async def test_another_task_in_the_place_of_one_ends_the_run(world: Callable[..., World]) -> None:
    here = world("other")
    with pytest.raises(BaseExceptionGroup):
        await here.process(Cutting(20), goes_on=False)
    TASKS[0], before = replace(TASKS[0], messages=({"role": "user", "content": "Why?"},)), TASKS[0]
    try:
        with pytest.raises(ExceptionGroup) as caught:
            await here.process(Cutting(None), goes_on=True)
    finally:
        TASKS[0] = before
    for error in caught.value.exceptions:  # of one or both of its trajectories
        assert isinstance(error, JournalError)
        assert "a task is not the one whose trajectory is recorded" in str(error)


async def test_a_journal_that_can_not_be_written_ends_the_run(world: Callable[..., World]) -> None:
    """Masked trajectories would hide it."""
    here = world("full")

    class Full(Cutting):
        def cut(self, file: JournalFile) -> None:
            super().cut(file)
            file._waiting.append((0, 0, 0, object()))  # type: ignore[arg-type]

    with pytest.raises(ExceptionGroup) as caught:
        await here.process(Full(None), goes_on=False)
    assert caught.value.subgroup(JournalError) is not None
    assert caught.value.split(JournalError)[1] is None
