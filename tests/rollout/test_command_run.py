"""A whole `fairbox rollout --up` of a model that makes no sense: what it says, and what it leaves behind."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.executor.servers import SLOWNESS

ROOT = Path(__file__).parents[2]
FEW = ("n=2", "limits.max_turns=1", "limits.max_turn_tokens=8", "concurrency=2")

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def run(tiny_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """The folder of a healthy run, and what the command printed."""
    out = tmp_path_factory.mktemp("run") / "out"
    words = [sys.executable, "-m", "rollout.cli", "rollout", "--up", f"model={tiny_dir}", f"out={out}", *FEW]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=200 * SLOWNESS)
    assert done.returncode == 0, done.stderr
    return out, done


def test_the_services_of_a_healthy_run_are_quiet(run: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    _, done = run
    assert "starting limiter and executor" in done.stderr
    assert " INFO " not in done.stdout + done.stderr
