"""The whole service as a user starts it: child processes, real ports, the installed command line."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest

from rollout.stack import StackPorts
from tests.executor.servers import SLOWNESS

START_WITHIN_S = 110.0
"""Within a test's own deadline. The first start of a fresh environment compiles all that it imports."""


def fairbox(*args: str, **options: object) -> subprocess.CompletedProcess[str]:
    """Runs the command line to its end and returns what it printed."""
    command = [sys.executable, "-m", "rollout.cli", *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, **options)  # type: ignore[call-overload, no-any-return]


@dataclass(frozen=True)
class Service:
    """A running `fairbox up`."""

    ports: StackPorts
    process: subprocess.Popen[str]
    log: Path


def ports_as_settings(ports: StackPorts) -> list[str]:
    """The words that make `fairbox up` listen there, and nowhere that another test may have taken."""
    return [f"{name}={address}" for name, address in asdict(ports).items() if not name.endswith("_health")]


def start(tmp_path: Path, *args: str, whole: bool = False) -> Service:
    """Starts `fairbox up` on free ports and returns when it says that it is up. `whole`: as it does by itself, with all
    languages that are here, and processes that have imported numpy and others before anybody asks."""
    ports = StackPorts.free()
    log = tmp_path / "up.log"
    env = {name: value for name, value in os.environ.items() if not (whole and name.startswith("EXECUTOR_"))}
    with log.open("w") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", "rollout.cli", "up", *ports_as_settings(ports), *args],
            env=env,
            stderr=stderr,
            text=True,
        )
    deadline = time.monotonic() + START_WITHIN_S * SLOWNESS
    while "Ctrl-C ends both" not in log.read_text():
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            process.wait()
            raise AssertionError(f"fairbox up did not start: {log.read_text()}")
        time.sleep(0.05)
    return Service(ports, process, log)


def stop(service: Service) -> int:
    """Ends it as Ctrl-C does and returns its exit code."""
    if service.process.poll() is None:
        service.process.send_signal(2)
    return service.process.wait(timeout=60)


@pytest.fixture(scope="package")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """One `fairbox up` for all tests, with two programs in flight at most."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("EXECUTOR_LANGUAGES", "")  # all that are here
        running = start(tmp_path_factory.mktemp("up"), "max_in_flight=2")
    yield running
    assert stop(running) == 130


def alive(pid: int) -> bool:
    """Says whether a process exists (a zombie does not count)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def children(pid: int) -> list[int]:
    """Every process below `pid`."""
    found: list[int] = []
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            try:
                parent = int(Path(entry.path, "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            if parent == pid:
                found += [int(entry.name), *children(int(entry.name))]
    return found


def until_gone(processes: list[int]) -> None:
    """Until none is left; who is told to end is gone a moment after."""
    deadline = time.monotonic() + 60
    while left := [pid for pid in processes if alive(pid)]:
        assert time.monotonic() < deadline, left
        time.sleep(0.05)
