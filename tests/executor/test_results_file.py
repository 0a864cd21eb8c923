"""Results that outlive the server: in a file by itself, and over the death of a real server."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from executor_service import (
    Cause,
    Display,
    ExecutionResult,
    ExecutorClient,
    FileStatus,
    InvalidRequest,
    Outcome,
    Output,
    OutputFile,
    RunLost,
    SessionNotFound,
)
from executor_service.model import Compilation
from executor_service.runs import results_file
from executor_service.runs.results_file import Earlier, ResultsFile
from executor_service.v1 import executor_pb2 as pb
from fairbox.errors import ConfigError
from tests.executor.levels import EXTREMES, Level
from tests.executor.servers import Server, children, exists, held, running, wait_for

MARK = b"m" * 32
ONCE = "import uuid; print(uuid.uuid4())"


def result(text: bytes = b"1\n") -> ExecutionResult:
    return ExecutionResult(Outcome.FINISHED, Cause.POLICY, stdout=Output(text, len(text)))


@asynccontextmanager
async def opened(folder: Path, **bounds: float) -> AsyncIterator[ResultsFile]:
    most = {"max_ids": 100, "max_bytes": 1 << 20, "max_age_s": 600.0} | bounds
    async with ResultsFile(str(folder), **most) as results:  # type: ignore[arg-type]
        yield results


async def earlier(folder: Path, **bounds: float) -> list[Earlier]:
    async with opened(folder, **bounds) as results:
        return results.take_earlier()


async def test_a_result_is_there_again_with_all_that_it_has(tmp_path: Path) -> None:
    whole = ExecutionResult(
        Outcome.NONZERO_EXIT,
        Cause.POLICY,
        exit_code=3,
        stdout=Output(b"\xffout", 1 << 40, truncated=True),
        stderr=Output(b"err", 3),
        files=(OutputFile("a/b", FileStatus.RETURNED, b"\0" * 300_000, 300_000), OutputFile("c", FileStatus.MISSING)),
        compilation=Compilation(Outcome.FINISHED, stderr=Output(b"warning", 7)),
        displays=(Display({"text/plain": b"1", "image/png": b"\x89"}),),
        wall_time_s=0.25,
        peak_memory_bytes=5,
        request_id="whole",
        message="It ended with 3.",
        cell=7,
    )
    async with opened(tmp_path) as results:
        await results.begin("whole", MARK)
        results.end("whole", MARK, whole)
    (found,) = await earlier(tmp_path)
    assert found._replace(age_s=0) == ("whole", MARK, whole, 0)
    assert 0 <= found.age_s < 60
    assert (tmp_path / "results.db").stat().st_mode & 0o777 == 0o600


async def test_what_was_begun_alone_may_have_run_and_what_was_abandoned_is_free(tmp_path: Path) -> None:
    async with opened(tmp_path) as results:
        for name in ("begun", "abandoned", "again"):
            await results.begin(name, MARK)
        results.abandon("abandoned")
        results.abandon("again")
        await results.begin("again", MARK)
        results.end("again", MARK, result())
    assert [each[:3] for each in await earlier(tmp_path)] == [("again", MARK, result()), ("begun", MARK, None)]


async def test_what_is_kept_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(time, "time", lambda: now)
    async with opened(tmp_path, max_ids=5, max_bytes=10_000) as results:
        await results.begin("running", MARK)
        for number in range(7):
            now += 1
            results.end(f"ended-{number}", MARK, result(b"x" * 4000))
            await results.begin("running", MARK)  # the disk has all before it
        status = results.status()
        assert status.entries == 5
        assert status.bytes <= 10_000
    found = {each.request_id: each.result is not None for each in await earlier(tmp_path)}
    # The last of all: what was begun counts from the start of this life.
    assert found == {f"ended-{number}": number > 4 for number in range(3, 7)} | {"running": False}
    now += 599.5  # since the last end, at which this life began
    assert [each.request_id for each in await earlier(tmp_path)] == ["ended-6", "running"]


async def test_a_clock_that_was_set_back_makes_nothing_older_or_younger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "time", lambda: 2_000.0)
    async with opened(tmp_path) as results:
        results.end("one", MARK, result())
    monkeypatch.setattr(time, "time", lambda: 1_000.0)
    (found,) = await earlier(tmp_path)
    assert found.age_s == 0


async def test_a_result_that_is_not_as_it_was_written_is_none(tmp_path: Path) -> None:
    async with opened(tmp_path) as results:
        results.end("one", MARK, result())
        results.end("two", MARK, result())
    with sqlite3.connect(tmp_path / "results.db") as connection:
        connection.execute("UPDATE runs SET result = CAST('nonsense' AS BLOB) WHERE request_id = 'one'")
    connection.close()
    assert {each.request_id: each.result for each in await earlier(tmp_path)} == {"one": None, "two": result()}


@pytest.mark.parametrize("why", ["file is not a database", "is of version 7, must be of 1"])
async def test_a_file_that_cannot_be_read_is_begun_anew(
    tmp_path: Path, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "results.db"
    if "version" in why:
        with sqlite3.connect(path) as connection:
            connection.execute("PRAGMA user_version=7")
        connection.close()
    else:
        path.write_bytes(b"nonsense" * 1000)
    async with opened(tmp_path) as results:
        assert results.take_earlier() == []
        results.end("one", MARK, result())
    assert why in caplog.text
    assert path.stat().st_mode & 0o777 == 0o600
    assert [each.request_id for each in await earlier(tmp_path)] == ["one"]


async def test_a_folder_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for folder, why in ((tmp_path, "another server uses it"), (tmp_path / "file", "File exists")):
        async with opened(tmp_path):
            with pytest.raises(ConfigError, match=f"results_dir is '{folder}': {why}"):
                await earlier(folder)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "small", tmp_path], capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(f"a small disk can't be mounted: {mounted.stderr}")
    yield tmp_path
    subprocess.run(["umount", tmp_path], check=True)


async def test_a_full_disk_fails_no_run(small_disk: Path) -> None:
    async with opened(small_disk, max_bytes=100 << 20) as results:
        for number in range(40):
            results.end(f"run-{number}", MARK, result(b"x" * 100_000))
            await results.begin(f"begun-{number}", MARK)
        assert results.status().failure == f"{small_disk}/results.db: database or disk is full"
    assert 0 < len(await earlier(small_disk)) < 40


async def test_a_disk_that_hangs_holds_up_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results_file, "_WITHIN_S", 0.2)
    goes_on = threading.Event()
    try:
        async with opened(tmp_path) as results:
            results._thread.submit(goes_on.wait, 60)
            await results.begin("begun", MARK)
            assert results.status().failure == f"{tmp_path}/results.db: the disk took more than 0.2 s"
            results.end("begun", MARK, result())
            await results.begin("next", MARK)
    finally:
        goes_on.set()


async def test_results_that_come_faster_than_the_disk_takes_them_are_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results_file, "_WAITING_BYTES", 1000)
    monkeypatch.setattr(results_file, "_LARGEST", 900)
    async with opened(tmp_path) as results:
        for number, size in enumerate((500, 400, 400, 950)):
            results.end(f"run-{number}", MARK, result(b"x" * size))
        await results.begin("begun", MARK)
        results.end("later", MARK, result(b"x" * 800))
    kept = {each.request_id for each in await earlier(tmp_path) if each.result}
    assert kept == {"run-0", "run-1", "later"}


def dies(server: Server) -> None:
    """Ends as SIGKILL ends it; what it had below it is gone then."""
    below = children(server.pid)
    server.process.kill()
    server.process.wait()
    wait_for(lambda: not any(map(exists, below)))


async def test_a_server_that_was_killed_answers_from_its_earlier_life(tmp_path: Path) -> None:
    setting = f"results_dir={tmp_path}"
    with running(setting) as server:
        async with ExecutorClient(server.target) as executor:
            first = await executor.execute(ONCE, request_id="once")
            session = (await executor.create_session()).session_id
            cell = await executor.execute(ONCE, session_id=session, request_id="cell")
            await executor.execute("print(2)")  # a later run: the disk has what came before
            dies(server)
    with running(setting) as server:
        async with ExecutorClient(server.target) as executor:
            again = await executor.execute(ONCE, request_id="once")
            assert (again.stdout, again.deduplicated) == (first.stdout, True)
            with pytest.raises(InvalidRequest, match="request_id was used for another request"):
                await executor.execute("print(1)", request_id="once")
            assert server.status().results == pb.ResultsStatus(
                entries=3, bytes=server.status().results.bytes, restored=3
            )
            # A session is gone with the life that made it; what its cell said is known.
            again = await executor.execute(ONCE, session_id=session, request_id="cell")
            assert (again.stdout, again.cell, again.deduplicated) == (cell.stdout, 1, True)
            with pytest.raises(SessionNotFound):
                await executor.execute(ONCE, session_id=session, request_id="another cell")


async def test_a_program_that_was_begun_is_not_begun_again(tmp_path: Path) -> None:
    setting, code = f"results_dir={tmp_path}", held()[1]
    with running(setting, "max_concurrent=1") as server:
        async with ExecutorClient(server.target) as executor:
            begun = asyncio.create_task(executor.execute(code, request_id="begun"))
            await asyncio.to_thread(wait_for, lambda: server.status().running == 1)
            waits = asyncio.create_task(executor.execute(ONCE, request_id="waits"))
            await asyncio.to_thread(wait_for, lambda: server.status().queued == 1)
            dies(server)
            assert len(await asyncio.gather(begun, waits, return_exceptions=True)) == 2
    with running(setting) as server:
        async with ExecutorClient(server.target) as executor:
            with pytest.raises(RunLost, match="may have run, and its result is no longer kept"):
                await executor.execute(code, request_id="begun")
            assert (await executor.execute(ONCE, request_id="waits")).ok


@pytest.fixture
def foreign() -> Iterator[Path]:
    """A folder in which ordinary users may make theirs."""
    with tempfile.TemporaryDirectory(prefix="fairbox-results-", dir="/var/tmp") as made:
        Path(made).chmod(0o777)
        yield Path(made)


@pytest.mark.parametrize("level", EXTREMES)
async def test_programs_cannot_take_results_away(level: Level, foreign: Path) -> None:
    folder = foreign / "results"
    spoil = """
import os, sys
for path in (*[f"{sys.argv[1]}/results.db{end}" for end in ("", "-wal", "-shm")], sys.argv[1]):
    for act in (open, os.listdir, lambda path: open(path, "w"), os.unlink, lambda path: os.truncate(path, 0),
                lambda path: os.rename(path, path + "x"), lambda path: os.chmod(path, 0)):
        try: print(act.__name__, path, act(path))
        except OSError: pass
"""
    with level.running(f"results_dir={folder}") as server:
        async with ExecutorClient(server.target) as executor:
            first = await executor.execute(ONCE, request_id="once")
            spoiled = await executor.execute(spoil, args=[str(folder)])
            assert "open" not in spoiled.stdout.text
            await executor.execute("print(2)")  # a later run: the disk has what came before
            dies(server)
    with level.running(f"results_dir={folder}") as server:
        async with ExecutorClient(server.target) as executor:
            again = await executor.execute(ONCE, request_id="once")
            assert (again.stdout, again.deduplicated) == (first.stdout, True)
