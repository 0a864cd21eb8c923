"""The services have gRPC's older listener, and the current folder last on their path; nobody else's is touched."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fairbox.net.ports import free_ports

ROOT = Path(__file__).parents[2]
WATCH = """
import atexit, os, sys
atexit.register(lambda: print("EXPERIMENTS", os.environ.get("GRPC_EXPERIMENTS"), "grpc" in sys.modules))
"""
"""Python runs it at the start of every process whose path has it."""


def ran(words: list[str], folder: Path, **env: str) -> subprocess.CompletedProcess[str]:
    (folder / "sitecustomize.py").write_text(WATCH)
    environment = {key: value for key, value in os.environ.items() if key != "GRPC_EXPERIMENTS"}
    environment.update(env, PYTHONPATH=f"{folder}{os.pathsep}{ROOT}")
    return subprocess.run(
        [sys.executable, *words], env=environment, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize("service", ["executor_service", "limiter"])
def test_a_service_has_the_older_listener(service: str, tmp_path: Path) -> None:
    done = ran(["-m", service, "--help"], tmp_path)
    assert "EXPERIMENTS -event_engine_listener True" in done.stdout, done.stderr


def test_grpc_still_has_the_choice(tmp_path: Path) -> None:
    listen, admin = (f"127.0.0.1:{port}" for port in free_ports(2))
    taken = ["-m", "limiter", f"listen={listen}", f"health_listen={listen}", f"admin_listen={admin}", "metrics_listen="]
    done = ran(taken, tmp_path)  # one port for two things: it listens, and ends
    assert done.returncode != 0
    assert listen in done.stderr
    assert "Unknown experiment" not in done.stderr
    assert "Unknown experiment: none_such" in ran(taken, tmp_path, GRPC_EXPERIMENTS="-none_such").stderr


def test_what_is_set_is_left_as_it_is(tmp_path: Path) -> None:
    done = ran(["-m", "limiter", "--help"], tmp_path, GRPC_EXPERIMENTS="tcp_frame_size_tuning")
    assert "EXPERIMENTS tcp_frame_size_tuning True" in done.stdout


@pytest.mark.parametrize("package", ["executor_service", "limiter", "rollout"])
def test_grpc_of_others_is_theirs(package: str, tmp_path: Path) -> None:
    done = ran(["-c", f"import grpc, {package}"], tmp_path)
    assert "EXPERIMENTS None True" in done.stdout, done.stderr


def test_a_program_that_imports_a_service_while_python_looks_for_it_has_its_own(tmp_path: Path) -> None:
    package = tmp_path / "trainer"
    package.mkdir()
    (package / "__init__.py").write_text("import executor_service, limiter")
    (package / "__main__.py").touch()
    (package / "limiter.py").touch()
    for words in (["-m", "trainer"], ["-m", "trainer", "limiter"], ["-mtrainer.limiter", "x"], ["-m", "rollout.cli"]):
        assert "EXPERIMENTS None" in ran(words, tmp_path).stdout, words
    assert "EXPERIMENTS -event_engine_listener True" in ran(["-Bmlimiter", "--help"], tmp_path).stdout
