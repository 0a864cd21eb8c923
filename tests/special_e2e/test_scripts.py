"""The script that a GPU user starts from, run on the CPU: the whole loop, and a sentence for what is missing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rollout.engines.local.decoder import load_model
from tests.rollout.conftest import model_dir as model_dir
from tests.rollout.conftest import tiny_dir as tiny_dir
from tests.rollout.sglang_servers import sglang_python

SCRIPT = Path(__file__).parent / "run_gsm8k_fsdp_sgl_multiturn_sf_tool.sh"


def run(out: Path, *words: str, **changes: str) -> subprocess.CompletedProcess[str]:
    small = {
        "FAIRBOX_STEPS": "2",
        "FAIRBOX_PROMPTS_PER_STEP": "2",
        "FAIRBOX_SAMPLES": "2",
        "FAIRBOX_CONCURRENCY": "4",
        "FAIRBOX_LR": "1e-3",
    }
    short = {
        "FAIRBOX_MAX_TURNS": "2",
        "FAIRBOX_MAX_TURN_TOKENS": "12",
        "FAIRBOX_MAX_RESPONSE_TOKENS": "64",
        "FAIRBOX_N_GPUS": "0",
    }
    env = {name: value for name, value in os.environ.items() if name != "FAIRBOX_DATA"}
    env |= (
        {"MODEL": "verl's", "TRAIN_FILE": "verl's"}
        | small
        | short
        | {"FAIRBOX_PYTHON": sys.executable, "FAIRBOX_OUT": str(out), "FAIRBOX_CHECKED_TOLERANCE": "2e-4"}
        | changes
    )
    return subprocess.run([SCRIPT, *words], env=env, capture_output=True, text=True, timeout=550, check=False)


def whole(out: Path, done: subprocess.CompletedProcess[str]) -> None:
    assert done.returncode == 0, done.stderr[-3000:]
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [(line["step"], line["masked"], line["trajectories"]) for line in lines] == [(1, 0, 4), (2, 0, 4)]
    assert all(line["logprob_difference_max"] < 2e-4 for line in lines)
    assert "4 trajectories" in done.stdout  # of check-dump
    assert f"view {out / 'rollouts'}" in done.stdout
    load_model(out / "model")


@pytest.mark.train
@pytest.mark.timeout(600)
@pytest.mark.parametrize("shards", ["1", "2"])
def test_the_whole_loop_with_the_engine_in_process(tiny_dir: Path, tmp_path: Path, shards: str) -> None:
    data = tmp_path / "train.jsonl"
    rows = [{"question": f"What is {n} + {n}?", "answer": f"It is {2 * n}.\n#### {2 * n}"} for n in range(3)]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    changes = {
        "FAIRBOX_MODEL": str(tiny_dir),
        "FAIRBOX_ENGINE": "transformers",
        "FAIRBOX_DATA_FILE": str(data),
        "FAIRBOX_SHARDS": shards,
    }
    done = run(tmp_path / "out", **changes)
    whole(tmp_path / "out", done)
    assert f"training: {shards} process(es), 0 GPU(s)" in done.stdout
    assert "3 rows in" in done.stdout


@pytest.mark.sglang
@pytest.mark.timeout(900)
def test_the_whole_loop_with_a_server_of_its_own_and_shards(tiny_dir: Path, tmp_path: Path) -> None:
    python = str(sglang_python())
    changes = {
        "FAIRBOX_MODEL": str(tiny_dir),
        "FAIRBOX_ENGINE": "sglang",
        "FAIRBOX_SGLANG_PYTHON": python,
        "FAIRBOX_SHARDS": "2",
        "FAIRBOX_START_S": "500",
    }
    done = run(tmp_path / "out", **changes)
    whole(tmp_path / "out", done)
    assert "the project's own problems" in done.stdout
    listed = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    assert str(tiny_dir) not in listed  # the server has ended with the script


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"FAIRBOX_ENGINE": "vllm"}, "FAIRBOX_ENGINE is 'vllm', must be sglang or transformers"),
        ({"FAIRBOX_MODEL": "/nowhere"}, "FAIRBOX_MODEL is '/nowhere', must be smollm2 or a folder with config.json"),
        ({"FAIRBOX_DATA_FILE": "/nowhere.jsonl"}, "FAIRBOX_DATA_FILE is '/nowhere.jsonl', which is no file"),
        ({"FAIRBOX_STEPS": "many"}, "FAIRBOX_STEPS is 'many', must be a whole number of at least 0"),
        ({"FAIRBOX_PYTHON": "/bin/false"}, "FAIRBOX_PYTHON is '/bin/false', which can't train"),
        (
            {"FAIRBOX_SGLANG_PYTHON": "/bin/false", "FAIRBOX_ENGINE": "sglang"},
            "FAIRBOX_SGLANG_PYTHON is '/bin/false', which has no sglang",
        ),
        (
            {"FAIRBOX_N_GPUS": "4", "FAIRBOX_SHARDS": "4"},
            "FAIRBOX_SHARDS is 4, must be at most the 2 GPUs that are left",
        ),
        (
            {"FAIRBOX_N_GPUS": "1", "FAIRBOX_ENGINE_GPUS": "2"},
            "FAIRBOX_ENGINE_GPUS is 2, must be at most FAIRBOX_N_GPUS, which is 1",
        ),
    ],
)
def test_what_is_missing_is_said_before_anything_starts(tmp_path: Path, changes: dict[str, str], problem: str) -> None:
    done = run(tmp_path / "out", **({"FAIRBOX_ENGINE": "sglang", "FAIRBOX_ENGINE_URLS": ""} | changes))
    assert done.returncode == 2
    assert done.stderr.startswith(f"{SCRIPT.name}: {problem}")
    assert not (tmp_path / "out").exists()
