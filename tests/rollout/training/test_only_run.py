"""Two runs and one folder."""

from __future__ import annotations

import errno
import fcntl
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fairbox.errors import ConfigError
from rollout.training.run.run import only_run

_HOLDS = """
import pathlib, sys, time
from rollout.training.run.run import only_run
with only_run(pathlib.Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


def test_a_folder_has_one_run_until_that_ends_however_it_ends(tmp_path: Path) -> None:
    out = tmp_path / "new" / "out"
    words = [sys.executable, "-c", _HOLDS, str(out)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as other:
        try:
            assert other.stdout is not None
            assert other.stdout.readline() == "held\n"
            with (
                pytest.raises(ConfigError, match=rf"to which another run writes \(process {other.pid} on "),
                only_run(out),
            ):
                pytest.fail("two have it")
        finally:
            other.send_signal(signal.SIGKILL)
    with only_run(out):
        pass
    with only_run(out):
        pass


def test_a_file_system_without_locks_keeps_nobody_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: object) -> None:
        raise OSError(errno.ENOLCK, "no locks")

    monkeypatch.setattr(fcntl, "flock", none)
    with only_run(tmp_path), only_run(tmp_path):
        pass
