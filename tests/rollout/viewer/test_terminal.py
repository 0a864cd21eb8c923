"""The command in a terminal of its own, as a person starts it."""

from __future__ import annotations

import contextlib
import os
import pty
import select
import shutil
import subprocess
import sys
import termios
import time
from pathlib import Path

from tests.executor.servers import SLOWNESS
from tests.rollout.viewer.driver import DEADLINE_S

ROOT = Path(__file__).parents[3]


def test_a_folder_of_runs_shows_the_newest_in_a_real_terminal(played: Path, tmp_path: Path) -> None:
    for age, name in enumerate(("the-newest-run", "another-run")):
        shutil.copytree(played, tmp_path / name)
        for path in (tmp_path / name).glob("*.jsonl"):
            os.utime(path, (2e9 - age, 2e9 - age))
    here, there = pty.openpty()
    termios.tcsetwinsize(there, (24, 200))
    command = [sys.executable, "-m", "rollout.cli", "view", str(tmp_path), "filter=masked"]
    env = os.environ | {"TERM": "xterm-256color"}
    with subprocess.Popen(command, cwd=ROOT, env=env, stdin=there, stdout=there, stderr=there) as process:
        os.close(there)
        shown, end = b"", time.monotonic() + DEADLINE_S * SLOWNESS
        while b"the-newest-run" not in shown or b"masked" not in shown:
            assert time.monotonic() < end, shown
            if select.select([here], [], [], 1)[0]:
                shown += os.read(here, 1 << 16)
        os.write(here, b"q")
        while process.poll() is None:
            assert time.monotonic() < end
            if select.select([here], [], [], 0.2)[0]:
                with contextlib.suppress(OSError):  # the terminal has no other side any more
                    os.read(here, 1 << 16)
        os.close(here)
    assert process.returncode == 0
    assert b"another-run" not in shown
