"""The file of a journal: what was appended is there, and what can't be trusted is not."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from rollout.engines import FinishReason, GenerationResult
from rollout.engines.base import VersionSpan
from rollout.journal.entries import Answered, Calling, Ended, Entry, Opened, Rewarded, Sampled, Scored, read, written
from rollout.journal.store import SCORE, Durability, JournalError, JournalFile
from rollout.tools import ToolOutcome, ToolResponse

ENTRIES: list[Entry] = [
    Opened("a" * 32, 1.5, "b" * 64),
    Sampled(
        0.1,
        0.30000000000000004,
        GenerationResult((1, 2), (-0.1, -1e-38), FinishReason.LENGTH, (VersionSpan("step-3", 0, 2),), 0.5, 0.25, 7),
    ),
    Calling(),
    Answered(
        2.0,
        (
            ToolResponse("é\0\ud800\u202e", ToolOutcome.PROGRAM_ERROR, True, 9, 1.0, 2.0, {"image/png": 3}, -0.5, True),
            ToolResponse("", ToolOutcome.OK),
        ),
    ),
    Rewarded({"a/b": 1.0}),
    Ended(3.0, "why", 5),
    Scored(0.5, {"x": 0.1}, {1: 0.2}),
]


def journal(
    folder: Path, about: dict[str, str] | None = None, durability: Durability = Durability.PROCESS
) -> JournalFile:
    return JournalFile(folder / "journal.db", durability=durability, about=about)


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: type(entry).__name__)
def test_an_entry_is_read_as_it_was_written(entry: Entry) -> None:
    assert read(written(entry)) == entry


def test_logprobs_survive_bit_for_bit() -> None:
    numbers = random.Random(1)
    values = tuple(-numbers.expovariate(1.0) * 10 ** numbers.randint(-30, 3) for _ in range(10_000))
    spans = (VersionSpan("v", 0, len(values)),)
    turn = Sampled(0.0, 1.0, GenerationResult(tuple(range(len(values))), values, FinishReason.STOP, spans))
    found = read(written(turn))
    assert isinstance(found, Sampled)
    assert found.turn.logprobs == values


@pytest.mark.parametrize("durability", [Durability.PROCESS, Durability.MACHINE])
async def test_entries_of_many_trajectories_come_back_in_their_order(tmp_path: Path, durability: Durability) -> None:
    async with journal(tmp_path, {"who": "me"}, durability) as file:

        async def trajectory(place: int) -> None:
            for number, entry in enumerate(ENTRIES[:-1]):
                await file.append(place, 1, number, entry)
            await file.append(place, 1, SCORE, ENTRIES[-1])

        await asyncio.gather(*map(trajectory, range(50)))
    async with journal(tmp_path) as file:
        assert file.about == {"who": "me"}
        for place in range(50):
            assert await file.entries(place, 1) == ENTRIES[:-1]
            assert await file.score(place, 1) == ENTRIES[-1]
        assert await file.entries(50, 1) == await file.entries(0, 2) == []
        assert await file.score(0, 2) is None


DAMAGE = {
    "a changed byte": "UPDATE entries SET body = CAST(replace(body, '7', '8') AS BLOB) WHERE place = 0 AND number = 1",
    "a text": "UPDATE entries SET body = 'x' WHERE place = 0 AND number = 1",
    "a missing entry": "DELETE FROM entries WHERE place = 0 AND number = 1",
    "another kind": "UPDATE entries SET kind = 'Ended' WHERE place = 0 AND number = 1",
    "an unknown kind": "UPDATE entries SET kind = 'Nothing' WHERE place = 0 AND number = 1",
}


@pytest.mark.parametrize("damage", DAMAGE)
async def test_nothing_behind_a_damaged_entry_is_trusted(tmp_path: Path, damage: str) -> None:
    async with journal(tmp_path, {}) as file:
        for place in range(2):
            for number, entry in enumerate(ENTRIES[:-1]):
                await file.append(place, 1, number, entry)
            await file.append(place, 1, SCORE, ENTRIES[-1])
    with sqlite3.connect(tmp_path / "journal.db") as connection:
        assert connection.execute(DAMAGE[damage]).rowcount == 1
    connection.close()
    async with journal(tmp_path) as file:
        assert await file.entries(0, 1) == ENTRIES[:1]
        assert await file.score(0, 1) is None
        await file.append(0, 1, 1, ENTRIES[1])
        assert await file.entries(0, 1) == ENTRIES[:2]
        assert await file.entries(1, 1) == ENTRIES[:-1]


async def test_a_damaged_score_is_none(tmp_path: Path) -> None:
    async with journal(tmp_path, {}) as file:
        await file.append(0, 1, SCORE, ENTRIES[-1])
    with sqlite3.connect(tmp_path / "journal.db") as connection:
        connection.execute("UPDATE entries SET checksum = checksum + 1")
    connection.close()
    async with journal(tmp_path) as file:
        assert await file.score(0, 1) is None
        await file.append(0, 1, SCORE, ENTRIES[-1])
        assert await file.score(0, 1) == ENTRIES[-1]


async def test_what_is_no_journal_is_refused_in_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    with pytest.raises(JournalError, match=r"journal\.db: is not there, so there is no run to go on with"):
        await journal(tmp_path).__aenter__()
    (tmp_path / "file").touch()
    async with journal(tmp_path / "file" / "folder", {}) as file:
        with pytest.raises(JournalError, match="Not a directory; with journal=none a run does without"):
            await file.begin()
    path.write_bytes(b"nothing of the kind" * 1000)
    with pytest.raises(JournalError, match="file is not a database"):
        await journal(tmp_path).__aenter__()
    async with journal(tmp_path, {}) as file:
        with pytest.raises(JournalError, match="exists, and belongs to another run"):
            await file.append(0, 1, 0, ENTRIES[0])
    path.unlink()
    async with journal(tmp_path, {}) as file:
        assert await file.entries(0, 1) == []
        assert not path.exists()
        await file.begin()
        assert path.exists()
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE about SET value = '0' WHERE name = 'version'")
    connection.close()
    with pytest.raises(JournalError, match="is of version '0', must be of '1'"):
        await journal(tmp_path).__aenter__()


async def test_an_answer_that_is_no_json_ends_the_run_and_loses_nothing_before_it(tmp_path: Path) -> None:
    odd = Answered(1.0, (ToolResponse("", ToolOutcome.OK, reward=object()),))  # type: ignore[arg-type]
    async with journal(tmp_path, {}) as file:
        await file.append(0, 1, 0, ENTRIES[0])
        with pytest.raises(JournalError, match=r"journal\.db: "):
            await file.append(0, 1, 1, odd)
        with pytest.raises(JournalError):
            await file.append(1, 1, 0, ENTRIES[0])
    async with journal(tmp_path) as file:
        assert await file.entries(0, 1) == ENTRIES[:1]


async def test_one_process_has_it_at_a_time(tmp_path: Path) -> None:
    async with journal(tmp_path, {}) as file:
        await file.append(0, 1, 0, ENTRIES[0])
        with pytest.raises(JournalError, match="another process uses it"):
            await journal(tmp_path).__aenter__()
    async with journal(tmp_path):
        pass


async def test_when_it_ends_there_is_no_file(tmp_path: Path) -> None:
    async with journal(tmp_path, {}) as file:
        await file.append(0, 1, 0, ENTRIES[0])
        await file.delete()
    assert not os.listdir(tmp_path)  # noqa: PTH208


async def test_after_a_failure_nothing_is_said_to_be_written(tmp_path: Path) -> None:
    async with journal(tmp_path, {}) as file:
        await file.append(0, 1, 0, ENTRIES[0])
        # An entry twice is what a defect of ours would write; those that are committed beside it are lost with it.
        results = await asyncio.gather(
            *(file.append(place, 1, 0, ENTRIES[0]) for place in range(5)), return_exceptions=True
        )
        assert all(isinstance(each, JournalError) for each in results), results
        with pytest.raises(JournalError, match="UNIQUE constraint failed"):
            await file.append(9, 1, 0, ENTRIES[0])
    async with journal(tmp_path) as file:
        assert await file.entries(0, 1) == ENTRIES[:1]
        assert await file.entries(1, 1) == []


WRITER = """
import asyncio, sys
from pathlib import Path
from rollout.journal.entries import Rewarded
from rollout.journal.store import Durability, JournalFile

async def trajectory(file, place):
    for number in range(100_000):
        await file.append(place, 1, number, Rewarded({"n": float(number)}))
        print(place, number, flush=True)

async def main():
    async with JournalFile(Path(sys.argv[1]) / "journal.db", durability=Durability.PROCESS, about={}) as file:
        await asyncio.gather(*(trajectory(file, place) for place in range(8)))

asyncio.run(main())
"""


@pytest.mark.parametrize("seed", range(3))
async def test_what_was_said_to_be_written_survives_a_kill(tmp_path: Path, seed: int) -> None:
    words = [sys.executable, "-c", WRITER, str(tmp_path)]
    process = await asyncio.create_subprocess_exec(*words, stdout=subprocess.PIPE)
    assert process.stdout is not None
    last: dict[int, int] = {}
    for _ in range(random.Random(seed).randint(50, 2000)):
        place, number = map(int, (await asyncio.wait_for(process.stdout.readline(), 60)).split())
        last[place] = number
    process.send_signal(signal.SIGKILL)
    rest, _ = await process.communicate()
    for line in rest[: rest.rfind(b"\n") + 1].splitlines():
        place, number = map(int, line.split())
        last[place] = number
    async with journal(tmp_path) as file:
        for place, number in last.items():
            found = await file.entries(place, 1)
            assert len(found) - 1 - number in (0, 1)  # one more may be there that nobody was told of
            assert found == [Rewarded({"n": float(each)}) for each in range(len(found))]
