"""Clusters of Ray that can't be had."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("ray")

ROOT = Path(__file__).parents[3]
PROGRAM = """
from fairbox.errors import FairboxError
from rollout.ray.cluster import ray_cluster
try:
    with ray_cluster("local", what="the test"):
        pass
except FairboxError as error:
    print(error)
"""


def test_a_cluster_that_does_not_start_in_time_is_a_sentence() -> None:
    env = os.environ | {"RAY_gcs_server_port_wait_time_s": "0", "RAY_USAGE_STATS_ENABLED": "0"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=ROOT, env=env, capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("no Ray cluster at ray_address=local: Timed out waiting for file "), done.stdout
    assert done.stdout.count("\n") == 1
