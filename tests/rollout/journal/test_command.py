"""`fairbox rollout resume=true`: a run that was killed goes on."""

from __future__ import annotations

import asyncio
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rollout.dump import read_dump
from rollout.dump_check import check_dump

ROOT = Path(__file__).parents[3]

pytestmark = pytest.mark.timeout(600)


DIES = """
import os, signal, sys
from rollout.cli import main
from rollout.dump import DumpWriter

def dies(*given, done=DumpWriter.{method}):
    done(*given)
    os.killpg(0, signal.SIGKILL)

DumpWriter.{method} = dies
sys.exit(main())
"""


def command(*words: str) -> list[str]:
    return [sys.executable, "-P", "-m", "rollout.cli", "rollout", *words]


async def killed(method: str, *words: str) -> None:
    """Plays a run that is killed behind the first call of a method of its dump."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-c", DIES.format(method=method), "rollout", *words),
        cwd=ROOT,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    assert await asyncio.wait_for(process.wait(), 200) == -signal.SIGKILL


def said(*words: str) -> str:
    """The one line that a run says which does not begin."""
    done = subprocess.run(command(*words), cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert done.returncode != 0
    assert done.stderr.count("\n") == 1, done.stderr
    return done.stderr


def lasting(record: dict[str, Any]) -> dict[str, Any]:
    """All of it but what is measured anew at its end: how long it took as a whole, and its scoring."""
    timings = {name: value for name, value in record["timings"].items() if name not in ("total_s", "score_s")}
    return {**record, "timings": timings, "metrics": None}


async def test_a_run_that_is_killed_before_its_first_turn_begins_again(tmp_path: Path, tiny_dir: Path) -> None:
    """Its dump is there, and empty."""
    few = ("n=1", "limits.max_turns=1", "limits.max_turn_tokens=8")
    words = ("--up", f"model={tiny_dir}", f"out={tmp_path}", *few, "resume=true")
    await killed("__enter__", *words)
    assert (tmp_path / "1.jsonl").read_bytes() == b""
    again = await asyncio.create_subprocess_exec(*command(*words), cwd=ROOT, stderr=subprocess.PIPE)
    _, errors = await asyncio.wait_for(again.communicate(), 300)
    assert again.returncode == 0, errors.decode()
    assert len(list(read_dump(tmp_path / "1.jsonl"))) == 1


async def test_a_killed_run_goes_on_and_keeps_what_it_had(tmp_path: Path, tiny_dir: Path) -> None:
    out, dump = tmp_path / "out", tmp_path / "out" / "1.jsonl"
    short = ("limits.max_turns=2", "limits.max_turn_tokens=16")
    words = (f"model={tiny_dir}", f"out={out}", "n=2", "samples_per_prompt=2", "concurrency=2", *short)
    await killed("write", "--up", *words)
    before = {record["request_id"]: record for record in read_dump(dump)}
    assert 1 <= len(before) < 4

    assert "which holds a run that was cut off; resume=true goes on with it" in said("--up", *words)
    assert "journal is 'none', but resume=true goes on" in said("--up", *words, "resume=true", "journal=none")
    changed = said("--up", *words, "resume=true", "limits.max_turns=1", "sampling.temperature=0.7")
    assert "limits.max_turns is 1, but was 2 when the run began" in changed
    assert "sampling.temperature is 0.7, but was 0.5 when the run began" in changed

    done = await asyncio.create_subprocess_exec(
        *command("--up", *words, "resume=true"), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    shown, errors = await asyncio.wait_for(done.communicate(), 300)
    assert done.returncode == 0, errors.decode()
    assert b"4 of 4 rollouts" in shown
    after = {record["request_id"]: record for record in read_dump(dump)}
    assert len(after) == 4
    assert not any(record["masked"] for record in after.values())
    for name, record in before.items():
        assert lasting(after[name]) == lasting(record)
    assert check_dump(dump, tiny_dir).problems == ()
    assert not (out / "journal.db").exists()

    assert "exists, and dumps are not overwritten" in said("--up", *words, "resume=true")


def test_a_journal_that_is_broken_or_of_nobody_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "journal.db").write_bytes(b"nonsense" * 1000)
    assert "journal.db: file is not a database" in said(f"out={tmp_path}", "resume=true")
    (tmp_path / "journal.db").unlink()
    with sqlite3.connect(tmp_path / "journal.db") as other:
        other.execute("CREATE TABLE mine (x)")
    other.close()
    assert "journal.db: no such table: about" in said(f"out={tmp_path}", "resume=true")
    (tmp_path / "journal.db").unlink()
    with sqlite3.connect(tmp_path / "journal.db") as foreign:
        foreign.execute("CREATE TABLE about (name TEXT, value TEXT)")
        foreign.execute("INSERT INTO about VALUES ('version', '1')")
    foreign.close()
    assert "journal.db: the run's settings can't be read: 'settings'" in said(f"out={tmp_path}", "resume=true")
    assert "resume is set, but a run with ray keeps no journal" in said("resume=true", "ray=true")
    assert "journal is 'twice'" in said("journal=twice")
