"""Real sglang servers on the CPU, for the tests that `make test-sglang` runs."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest

from rollout.engines.sglang.launch import LaunchConfig

ROOT = Path(__file__).parents[2]
_ARGS = (
    *("--device", "cpu", "--dtype", "float32", "--attention-backend", "torch_native", "--sampling-backend", "pytorch"),
    *("--grammar-backend", "none", "--max-total-tokens", "8192", "--context-length", "2048"),
    *("--max-running-requests", "16", "--mem-fraction-static", "0.2", "--skip-server-warmup", "--sleep-on-idle"),
    *("--cuda-graph-backend-decode=disabled", "--cuda-graph-backend-prefill=disabled"),
)
_ENV = {"SGLANG_USE_CPU_ENGINE": "1", "OMP_WAIT_POLICY": "passive", "HF_HUB_OFFLINE": "1"}


def sglang_python() -> Path:
    """The interpreter that has sglang: `FAIRBOX_SGLANG_PYTHON`, or that of `make test-sglang`."""
    python = Path(os.environ.get("FAIRBOX_SGLANG_PYTHON") or ROOT / ".venv-sglang" / "bin" / "python")
    if not python.exists():
        pytest.skip("sglang is not installed: run `make test-sglang`")
    return python.absolute()  # not resolved: the link is what makes it the interpreter of its environment


def on_cpu(model: Path, *, replicas: int = 1, restarts: int = 0, **env: str) -> LaunchConfig:
    """Servers of `model` on this machine's processors."""
    return LaunchConfig(
        model=model,
        replicas=replicas,
        on_cpu=True,
        python=str(sglang_python()),
        args=_ARGS,
        env=_ENV | {"TOKENIZERS_PARALLELISM": "false", "PYTHONWARNINGS": "ignore"} | env,
        restarts=restarts,
    )


def listener(url: str) -> int:
    """The process that listens at `url`."""
    port = int(url.rpartition(":")[2])
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    inodes = {row[9] for row in rows if row[3] == "0A" and int(row[1].rpartition(":")[2], 16) == port}
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            with contextlib.suppress(OSError):
                for file in (process / "fd").iterdir():
                    if str(file.readlink())[8:-1] in inodes:
                        return int(process.name)
    raise AssertionError(f"nobody listens at {url}")
