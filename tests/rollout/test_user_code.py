"""Files in the current folder: users' code is found, and disturbs nothing of fairbox's."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

FAIRBOX = Path(sys.executable).with_name("fairbox")
SHADOWS = ("limiter", "rollout", "executor_service", "tests", "numpy", "grpc", "yaml")


@pytest.fixture
def shadowed(tmp_path: Path) -> Path:
    """A folder that has a file with the name of each package."""
    for name in SHADOWS:
        (tmp_path / f"{name}.py").write_text(f"raise RuntimeError('{name}.py of the current folder was loaded')\n")
    return tmp_path
