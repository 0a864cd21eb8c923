"""Files in the current folder: users' code is found there, and their files disturb nothing of fairbox's."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.pages import examples

FAIRBOX = str(Path(sys.executable).with_name("fairbox"))
SHADOWS = ("limiter", "rollout", "executor_service", "tests", "numpy", "grpc", "yaml", "pydantic")


@pytest.fixture
def shadowed(tmp_path: Path) -> Path:
    """A folder that has a file with the name of each package."""
    for name in SHADOWS:
        (tmp_path / f"{name}.py").write_text(f"raise RuntimeError('{name}.py of the current folder was loaded')\n")
    return tmp_path


def run(folder: Path, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        words, cwd=folder, env=os.environ | env, capture_output=True, text=True, timeout=100, check=False
    )


def test_files_with_the_names_of_packages_disturb_no_command(shadowed: Path) -> None:
    done = run(shadowed, FAIRBOX, "exec", "--up", "-c", "print(6 * 7)")
    assert (done.returncode, done.stdout, done.stderr) == (0, "42\n", "")
    report = run(shadowed, FAIRBOX, "doctor", "--json")
    assert '"works": true' in report.stdout, report.stderr


@pytest.mark.parametrize("service", ["limiter", "executor_service", "rollout.cli"])
def test_nor_the_services_by_themselves(shadowed: Path, service: str) -> None:
    for name in SHADOWS:
        if name != service.partition(".")[0]:  # that is the program which the user asks for
            continue
        (shadowed / f"{name}.py").unlink()
    done = run(shadowed, sys.executable, "-m", service, "--help")
    assert (done.returncode, done.stderr) == (0, "")


def test_another_package_of_the_name_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "limiter").mkdir()
    (tmp_path / "limiter" / "__init__.py").write_text("class Limiter: ...\n")
    done = run(Path("/"), FAIRBOX, "exec", "-c", "print(1)", PYTHONPATH=str(tmp_path))
    assert done.returncode == 1
    assert done.stderr == (
        f"fairbox exec: {tmp_path}/limiter/__init__.py is found as 'limiter' in place of fairbox's own package: "
        "rename it, or take it off PYTHONPATH\n"
    )


def test_an_environment_and_a_reward_of_the_current_folder_are_found(shadowed: Path) -> None:
    (shadowed / "sums.py").write_text(examples("how-to/environments.md", "python")[0])
    done = run(shadowed, FAIRBOX, "rollout", "env=sums:Sums", "env_config.count=0")
    assert done.stderr == "fairbox rollout: env_config.count is 0, must be at least 1\n"
    (shadowed / "my_rewards.py").write_text("def brevity(answer):\n    return 1.0\n")
    done = run(shadowed, FAIRBOX, "rollout", "reward=my_rewards:brevity", "data=absent.jsonl")
    assert "absent.jsonl: No such file" in done.stderr  # the reward was found before
    done = run(shadowed, FAIRBOX, "rollout", "reward=my_rewards:shortness", "data=absent.jsonl")
    assert "has no attribute 'shortness'" in done.stderr
