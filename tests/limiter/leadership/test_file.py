"""Leading by a lock on a file: real locks, real processes, real signals."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fairbox.errors import ConfigError
from limiter import ExecutorSession
from limiter.config import LimiterConfig
from limiter.leadership import LeadershipLost, Member, RosterNotKept
from limiter.leadership.file import FileLeadership
from limiter.server import LimiterServer
from tests.limiter.servers import ANYWHERE, program, until

ROSTER = (Member("s1", "executor-0"), Member("s2", 'na"me'))

LEAD = """
import asyncio, sys
from limiter.leadership import Member
from limiter.leadership.file import FileLeadership

async def main():
    leadership = FileLeadership(sys.argv[1], name=f"pid {sys.argv[2]}")
    await leadership.campaign()
    await leadership.store([Member("s1", "executor-0")])
    print("READY", flush=True)
    await leadership.hold()

asyncio.run(main())
"""


def state(path: Path) -> dict[str, object]:
    found = json.loads(path.read_text())
    assert isinstance(found, dict)
    return found


async def test_first_start_knows_nobody_unless_it_is_fresh(tmp_path: Path) -> None:
    leadership = FileLeadership(tmp_path / "a")
    assert leadership.lead_until == float("-inf")
    term = await leadership.campaign()
    assert term.roster is None
    assert abs(term.epoch - time.time() * 1000) < 60_000
    assert leadership.lead_until == float("inf")
    assert state(tmp_path / "a") == {"epoch": term.epoch, "roster": None, "key": term.key.hex()}
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o600, "whoever has the key can make tickets"
    await leadership.resign()
    fresh = FileLeadership(tmp_path / "b", fresh=True)
    first = await fresh.campaign()
    assert (first.roster, first.follows) == ((), False)
    await fresh.resign()


async def test_the_next_gets_the_roster_and_a_higher_epoch(tmp_path: Path) -> None:
    path = tmp_path / "state"
    first = FileLeadership(path, name="first")
    before = await first.campaign()
    await first.store(ROSTER)
    second = FileLeadership(path, name="second", fresh=True)
    campaign = asyncio.create_task(second.campaign())
    await until(lambda: second.leader == "first")
    assert not campaign.done()
    await first.resign()
    await first.resign()
    term = await asyncio.wait_for(campaign, 30)
    assert (term.epoch > before.epoch, term.roster, second.leader) == (True, ROSTER, "second")
    assert (term.follows, term.key) == (True, before.key), "what the first has given is known"
    with pytest.raises(LeadershipLost, match="does not lead"):
        await first.store(())
    await second.resign()
    path.write_text(json.dumps({"epoch": 1 << 50, "roster": []}))
    third = FileLeadership(path)
    assert (await third.campaign()).epoch == (1 << 50) + 1
    await third.resign()


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "Expecting value"),
        ('{"epoch": 3', "delimiter"),
        ('{"epoch": 3}', "it must have epoch, roster and key, and nothing else"),
        ('{"epoch": 0, "roster": []}', "epoch is 0, must be from 1"),
        ('{"epoch": 3, "roster": [["a"]]}', r"roster\[0\] is \['a'\], must be a session and a name"),
        ('{"epoch": 3, "roster": {}}', "roster is {}, must be a list or null"),
        ('{"epoch": 3, "roster": [], "key": "ab"}', "key must be 64 hexadecimal digits"),
    ],
)
async def test_a_damaged_file_is_named_and_left_alone(tmp_path: Path, text: str, sentence: str) -> None:
    path = tmp_path / "state"
    path.write_text(text)
    with pytest.raises(ConfigError, match=f"state_file {path} is damaged: .*{sentence}"):
        await FileLeadership(path).campaign()
    assert path.read_text() == text
    path.unlink()
    after = FileLeadership(path)
    await asyncio.wait_for(after.campaign(), 30)  # the lock was given back
    await after.resign()


async def test_a_roster_outlives_terms_that_keep_nothing(tmp_path: Path) -> None:
    first = FileLeadership(tmp_path / "state")
    await first.campaign()
    await first.store(ROSTER)
    await first.resign()
    for _ in range(2):
        leadership = FileLeadership(tmp_path / "state")
        assert (await leadership.campaign()).roster == ROSTER
        await leadership.resign()


def test_a_file_system_of_another_machine_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    device = tmp_path.stat().st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    mounts = [line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    kinds = {words[words.index("-") + 1] for words in mounts if words[2] == number}
    if not kinds:
        pytest.skip("Linux does not list the device of the temporary folder")
    monkeypatch.setattr("limiter.leadership.file._REMOTE", frozenset(kinds))
    with pytest.raises(ConfigError, match=f"state is on {kinds.pop()}: a lock there can be lost"):
        asyncio.run(FileLeadership(tmp_path / "state").campaign())


async def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"absent/state: state\.lock can't be made: No such file"):
        await FileLeadership(tmp_path / "absent" / "state").campaign()


async def test_a_disk_that_can_not_be_written_ends_no_term(tmp_path: Path) -> None:
    leadership = FileLeadership(tmp_path / "state")
    await leadership.campaign()
    (tmp_path / "state.new").mkdir()
    with pytest.raises(RosterNotKept, match="state could not be written: Is a directory"):
        await leadership.store(ROSTER)
    assert leadership.lead_until == float("inf")
    (tmp_path / "state.new").rmdir()
    await leadership.store(ROSTER)
    assert state(tmp_path / "state")["roster"] == [["s1", "executor-0"], ["s2", 'na"me']]
    await leadership.resign()


async def test_a_disk_that_can_not_be_written_at_the_start_leaves_the_lead_to_others(tmp_path: Path) -> None:
    (tmp_path / "state.new").mkdir()
    with pytest.raises(LeadershipLost, match="Is a directory"):
        await FileLeadership(tmp_path / "state").campaign()
    (tmp_path / "state.new").rmdir()
    after = FileLeadership(tmp_path / "state")
    await asyncio.wait_for(after.campaign(), 30)
    await after.resign()


def _full(new: Path) -> Callable[[], None]:
    """No file can be written there; returns what ends that."""
    new.mkdir()
    return new.rmdir


def _slow(new: Path) -> Callable[[], None]:
    """A write there takes until it is ended, and fails."""
    os.mkfifo(new)

    def end() -> None:
        reader = os.open(new, os.O_RDONLY | os.O_NONBLOCK)
        new.unlink()
        os.close(reader)

    return end


@pytest.mark.parametrize("fault", [_full, _slow])
async def test_while_rosters_can_not_be_written_executors_come_and_go_and_programs_run_on(
    fault: Callable[[Path], Callable[[], None]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = LimiterConfig(
        listen=ANYWHERE,
        admin_listen=ANYWHERE,
        health_listen=ANYWHERE,
        metrics_listen="",
        leader="file",
        state_file=str(tmp_path / "state"),
        fresh=True,
    )
    async with LimiterServer(config) as server, asyncio.timeout(100):
        await server.wait_leading()
        term = asyncio.create_task(server.run())
        stays, leaves = ExecutorSession(server.address), ExecutorSession(server.address)
        async with stays, stays.acquire() as running:
            async with leaves:
                await until(lambda: leaves.connected, within=30)
                monkeypatch.setattr("limiter.leadership.file._WRITE_WITHIN_S", 0.5)
                end = fault(tmp_path / "state.new")
            async with ExecutorSession(server.address, executor_id="joins") as joins:
                await until(lambda: "the roster can't be kept" in joins._runner._reconnection.trouble, within=30)
                await asyncio.sleep(2)  # several attempts
                assert not joins.connected
                assert not term.done()
                assert stays.vouches(running)
                async with stays.acquire():
                    pass
                monkeypatch.undo()  # from here on a busy disk may take its time
                end()
                await until(lambda: joins.connected, within=30)
                names = [[stays.session_id, stays.executor_id], [joins.session_id, "joins"]]
                assert state(tmp_path / "state")["roster"] == names
        term.cancel()


async def test_a_lock_file_that_somebody_removed_ends_the_term(tmp_path: Path) -> None:
    leadership = FileLeadership(tmp_path / "state")
    await leadership.campaign()
    hold = asyncio.create_task(leadership.hold())
    await asyncio.sleep(0.1)
    assert not hold.done()
    (tmp_path / "state.lock").unlink()
    with pytest.raises(LeadershipLost, match="was removed"):
        await asyncio.wait_for(hold, 30)
    assert leadership.lead_until == float("-inf")
    await leadership.resign()


async def test_a_cancelled_campaign_gives_the_lock_back(tmp_path: Path) -> None:
    for _ in range(20):
        leadership = FileLeadership(tmp_path / "state")
        campaign = asyncio.create_task(leadership.campaign())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        campaign.cancel()
        await asyncio.gather(campaign, return_exceptions=True)
        await leadership.resign()
    after = FileLeadership(tmp_path / "state")
    await asyncio.wait_for(after.campaign(), 30)
    await after.resign()


async def test_a_leader_that_is_killed_while_it_writes_leaves_a_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "state"
    writes = LEAD.replace(
        "    await leadership.hold()",
        "    for n in range(10**9):\n        await leadership.store([Member(f's{n}', 'x' * 200)] * 50)",
    )
    epochs = []
    for number in range(4):
        async with program(writes, str(path), str(number)) as process:
            await asyncio.sleep(0.1 + 0.03 * number)
            process.kill()
            await process.wait()
        follower = FileLeadership(path)
        term = await asyncio.wait_for(follower.campaign(), 30)
        assert term.roster
        epochs.append(term.epoch)
        await follower.resign()
    assert epochs == sorted(set(epochs))
