"""Commands on a disk that is too small: each ends with one sentence that names the file, and with nothing left over."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rollout.dump import read_dump
from tests.executor.servers import SLOWNESS

ROOT = Path(__file__).parents[2]
FULL = "No space left on device"
FEW = ("limits.max_turns=1", "limits.max_turn_tokens=8", "concurrency=2")
PLAIN = "env_config.prompt=plain"
"""A prompt without tools: the run needs no services."""


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small disk")
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)]
    if (done := subprocess.run(mount, capture_output=True, text=True)).returncode:
        pytest.skip(f"a small disk can't be mounted here: {done.stderr.strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def fairbox(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "rollout.cli", *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=250 * SLOWNESS)


def test_a_dump_that_fills_the_disk_ends_the_run(small_disk: Path, tiny_dir: Path) -> None:
    out = small_disk / "out"
    words = (PLAIN, f"model={tiny_dir}", f"out={out}", "samples_per_prompt=8", "journal=none")
    done = fairbox("rollout", *words, *FEW)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == f"fairbox rollout: {out / '1.jsonl'}: can't be written: {FULL}"
    assert "Traceback" not in done.stderr


def test_a_run_whose_journal_fills_the_disk_goes_on_when_there_is_room(
    small_disk: Path, tiny_dir: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    # Alone on the disk: of a journal and a dump, either may fill it first.
    (out / "journal.db").symlink_to(small_disk / "journal.db")
    words = (PLAIN, f"model={tiny_dir}", f"out={out}", "samples_per_prompt=8")
    done = fairbox("rollout", *words, *FEW)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == f"fairbox rollout: {out / 'journal.db'}: database or disk is full"
    assert "Traceback" not in done.stderr
    before = list(read_dump(out / "1.jsonl"))
    subprocess.run(["mount", "-o", "remount,size=16m", str(small_disk)], check=True)
    done = fairbox("rollout", *words, *FEW, "resume=true")
    assert done.returncode == 0, done.stderr
    after = {record["request_id"]: record["response_ids"] for record in read_dump(out / "1.jsonl")}
    assert len(after) == 64
    assert all(after[record["request_id"]] == record["response_ids"] for record in before)


@pytest.mark.train
def test_a_checkpoint_that_fills_the_disk_is_told_in_the_words_of_the_system(small_disk: Path, tiny_dir: Path) -> None:
    steps = ("steps=1", "prompts_per_step=1", "samples_per_prompt=2")
    done = fairbox("train", "--up", f"model={tiny_dir}", f"out={small_disk / 'out'}", *steps, *FEW)
    checkpoint = small_disk / "out" / "checkpoints" / "step-000001"
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == f"fairbox train: {checkpoint}: the checkpoint can't be written: {FULL}"
    assert "Traceback" not in done.stderr
    assert not list((small_disk / "out" / "checkpoints").iterdir())


@pytest.mark.train
def test_a_folder_that_cant_be_made_is_one_sentence(tiny_dir: Path) -> None:
    done = fairbox("train", "--up", f"model={tiny_dir}", "out=/proc/nothing/out")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "fairbox train: /proc/nothing/out/run.lock: can't be written: No such file or directory"
    )
