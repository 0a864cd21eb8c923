"""Ctrl-C while `fairbox rollout --up` starts: it ends with everything below it, whatever it was waiting for."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.e2e.conftest import alive, children
from tests.executor.servers import SLOWNESS

ROOT = Path(__file__).parents[2]
ENDLESS = """
import sys, threading
from rollout.engines.local import engine
from rollout.cli import main

class Decoder:
    def __init__(self, *args, **options):
        print("the model is being read", file=sys.stderr, flush=True)
        threading.Event().wait()

engine.Decoder = Decoder
sys.exit(main(sys.argv[1:]))
"""
"""The command with a model that takes for ever."""
COMMAND = ["-m", "rollout.cli"]


def started(program: list[str], *words: str) -> subprocess.Popen[str]:
    # Whoever runs the tests in the background ignores SIGINT, and so would what they start.
    command = ["env", "--default-signal=INT", sys.executable, *program, *words]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def until_said(process: subprocess.Popen[str], sentence: str) -> None:
    assert process.stderr is not None
    for line in process.stderr:
        if sentence in line:
            return
    raise AssertionError(f"ended with {process.wait()} before it said {sentence!r}")


@pytest.mark.parametrize(
    ("program", "moment"),
    [(COMMAND, "starting limiter and executor"), (COMMAND, "loading"), (["-c", ENDLESS], "the model is being read")],
    ids=["services", "model", "endless"],
)
def test_ctrl_c_ends_a_start(program: list[str], moment: str, tmp_path: Path, model_dir: Path) -> None:
    with started(program, "rollout", "--up", f"model={model_dir}", f"out={tmp_path / 'out'}") as process:
        until_said(process, moment)
        if moment == "loading":  # the children of the first moment may not be there yet
            assert children(process.pid)
        below = children(process.pid)
        process.send_signal(signal.SIGINT)
        said, errors = process.communicate(timeout=60 * SLOWNESS)
    assert (process.returncode, said) == (130, "")
    assert "Traceback" not in errors
    assert errors.splitlines()[-1] == "interrupted before the first rollout"
    assert not (tmp_path / "out").exists()
    deadline = time.monotonic() + 20 * SLOWNESS
    while left := [pid for pid in below if alive(pid)]:
        assert time.monotonic() < deadline, left
        time.sleep(0.05)


def test_ctrl_c_before_anything_has_begun_is_no_traceback(tmp_path: Path) -> None:
    program = (
        "import os, signal, sys; import rollout.cli.data.command; from rollout.cli import main\n"
        "rollout.cli.data.command.main = lambda argv: os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.exit(main(['data']))"
    )
    with started(["-c", program]) as process:
        said, errors = process.communicate(timeout=60 * SLOWNESS)
    assert (process.returncode, said, errors) == (130, "", "")
