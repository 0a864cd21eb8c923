"""A rollout service that is killed at any step, on disks that keep, lose or spoil what they had: everything comes, once
for good, and is what an undisturbed service gives.

With defects planted, the same simulation says so.
"""

from __future__ import annotations

import asyncio
import shutil
import zlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rollout.journal import TrajectoryJournal, store, trajectory_journal
from rollout.journal.entries import Answered, Calling, Ended, Entry, Opened, Rewarded, Sampled, read
from rollout.journal.store import JournalFile
from rollout.service.book import BookEntry, Delivery, TrajectoryBook
from rollout.service.store import TrajectoryStore
from rollout.service.trajectories import Trajectories
from rollout.tokens import ChatTemplate, HubTokenizer
from tests.rollout.service.sim.disk import Fault
from tests.rollout.service.sim.world import Plan, World

PLANS = {
    "killed": Plan(0),
    "killed in the middle of calls that can't be made again": Plan(0, repeatable=False),
    "killed while some are cancelled": Plan(0, cancels=True),
    "on any disk": Plan(0, faults=tuple(Fault)),
    "on any disk, with calls that can't be made again": Plan(0, faults=tuple(Fault), repeatable=False, cancels=True),
}
Make = Callable[[Plan], World]
"""Runs a simulation to its end."""


@pytest.fixture(scope="module")
def simulate(tokenizer: HubTokenizer, chat: ChatTemplate, tmp_path_factory: pytest.TempPathFactory) -> Make:
    def run(plan: Plan, wanted: Mapping[str, Mapping[str, Any]] | None = None) -> World:
        root = tmp_path_factory.mktemp("volumes")
        world = World(plan, tokenizer, chat, root)
        world.run(wanted)
        shutil.rmtree(root)
        return world

    undisturbed = run(Plan(0, lives=1))
    assert not undisturbed.violations
    assert len(undisturbed.received) == undisturbed.plan.trajectories

    def simulated(plan: Plan) -> World:
        world = run(plan, undisturbed.received)
        if plan.keeps and plan.repeatable and not plan.cancels and world.recorded != undisturbed.recorded:
            world.say(f"{world.recorded} turns were recorded, in place of {undisturbed.recorded}")
        return world

    return simulated


@pytest.mark.parametrize("name", PLANS)
def test_everything_comes_once_for_good_whatever_happens(simulate: Make, name: str) -> None:
    ends = set()
    for seed in range(40):
        world = simulate(replace(PLANS[name], seed=seed))
        assert not world.violations, seed
        ends |= set(world.ends)
    assert ends == set(PLANS[name].faults)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", PLANS)
def test_everything_comes_once_for_good_a_thousand_times(simulate: Make, name: str) -> None:
    for seed in range(1000, 2000):
        assert not simulate(replace(PLANS[name], seed=seed)).violations, seed


def results_are_forgotten_first(patch: pytest.MonkeyPatch) -> None:
    made = Trajectories._message

    async def forgotten(service: Trajectories, entry: BookEntry, *given: Any) -> bytes:
        await service._player.journal.forget(entry.number)
        return await made(service, entry, *given)

    patch.setattr(Trajectories, "_message", forgotten)


def nothing_waits_for_the_journal(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(trajectory_journal, "_WITH_THE_NEXT", (Opened, Sampled, Calling, Answered, Rewarded, Ended))


def calls_are_sent_before_that_is_recorded(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(trajectory_journal, "_WITH_THE_NEXT", (Opened, Sampled, Calling))


def the_journal_is_not_read(patch: pytest.MonkeyPatch) -> None:
    async def nothing(*_: object) -> list[Entry]:
        return []

    patch.setattr(JournalFile, "entries", nothing)


def checksums_are_not_looked_at(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(store, "read", lambda stored: read(replace(stored, checksum=zlib.crc32(stored.body))))


def bad_entries_stay(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(JournalFile, "_drop", lambda *_: None)


def acknowledged_results_stay(patch: pytest.MonkeyPatch) -> None:
    async def stays(*_: object) -> None:
        return None

    patch.setattr(TrajectoryStore, "forget", stays)


def acknowledgements_do_not_wait_for_the_disk(patch: pytest.MonkeyPatch) -> None:
    forget = Trajectories._forget

    async def later(service: Trajectories, numbers: list[int]) -> None:
        service._group.create_task(forget(service, numbers))

    patch.setattr(Trajectories, "_forget", later)


def cancelling_ends_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TrajectoryBook, "cancel", lambda *_: [])


def a_stream_gives_what_it_gave(patch: pytest.MonkeyPatch) -> None:
    give = TrajectoryBook.give

    def again(book: TrajectoryBook, delivery: Delivery) -> BookEntry | None:
        entry = give(book, delivery)
        if entry is not None:
            delivery.pending.append(entry)
        return entry

    patch.setattr(TrajectoryBook, "give", again)


def a_file_that_is_there_was_begun(patch: pytest.MonkeyPatch) -> None:
    for module in ("rollout.journal.store", "rollout.service.store", "tests.rollout.service.sim.world"):
        patch.setattr(f"{module}.begun", Path.exists)


def whatever_is_recorded_is_this_task(patch: pytest.MonkeyPatch) -> None:
    async def opened(journal: TrajectoryJournal, own: Opened) -> Opened:
        async def made() -> Opened:
            return own

        return await journal.once(Opened, made)

    patch.setattr(TrajectoryJournal, "opened", opened)


def results_are_not_kept(patch: pytest.MonkeyPatch) -> None:
    async def kept(*_: object) -> None:
        await asyncio.sleep(0)

    patch.setattr(TrajectoryStore, "end", kept)


KILLED = Plan(0)
ONCE, CANCELS = replace(KILLED, repeatable=False), replace(KILLED, cancels=True)
TORN, APART, ROTTEN = (replace(KILLED, faults=(fault,)) for fault in (Fault.TORN, Fault.APART, Fault.ROTTEN))
DEFECTS: list[tuple[Callable[[pytest.MonkeyPatch], None], str, Plan]] = [
    (results_are_forgotten_first, "turns were recorded, in place of", KILLED),
    (nothing_waits_for_the_journal, "was sampled before the one before it was recorded", KILLED),
    (
        calls_are_sent_before_that_is_recorded,
        "calls that may have run were made again",
        replace(KILLED, repeatable=False),
    ),
    (the_journal_is_not_read, "the service ended by itself", KILLED),
    (checksums_are_not_looked_at, "is another one than it must be", ROTTEN),
    (bad_entries_stay, "the service ended by itself", ROTTEN),
    (acknowledged_results_stay, "came although it was acknowledged", KILLED),
    (acknowledgements_do_not_wait_for_the_disk, "came although it was acknowledged", KILLED),
    (cancelling_ends_nothing, "came although it was acknowledged or cancelled", CANCELS),
    (a_stream_gives_what_it_gave, "came twice in one stream", KILLED),
    (a_file_that_is_there_was_begun, "no such table", TORN),
    (whatever_is_recorded_is_this_task, "is another one than it must be", APART),
    (results_are_not_kept, "never came", KILLED),
]


@pytest.mark.parametrize(
    ("plant", "says", "plan"), DEFECTS, ids=[plant.__name__.replace("_", "-") for plant, _, _ in DEFECTS]
)
def test_a_planted_defect_is_found(
    simulate: Make, monkeypatch: pytest.MonkeyPatch, plant: Callable[[pytest.MonkeyPatch], None], says: str, plan: Plan
) -> None:
    plant(monkeypatch)
    found = (
        violation
        for seed in range(200)
        for violation in simulate(replace(plan, seed=seed)).violations
        if says in violation
    )
    assert next(found, None) is not None
