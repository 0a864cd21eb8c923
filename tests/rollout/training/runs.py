"""Whole runs of the environment vowels, and what they leave. Importing it costs torch."""

from __future__ import annotations

import asyncio
import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from rollout.envs.base import EnvironmentSetup
from rollout.training.config import TrainConfig
from rollout.training.run.run import TrainingRun, train
from tests.rollout.training.vowels import Vowels, VowelsConfig

NOWHERE = "127.0.0.1:9"


def vowels_run(
    config: TrainConfig, model_dir: Path, out: Path, *, wanted: str = "aeiou", **changes: Any
) -> TrainingRun:
    """Trains on four problems, and evaluates on one of them."""
    config = replace(config, model=str(model_dir), out=str(out), **changes)
    config.validate()
    settings = VowelsConfig(wanted)
    held_out = Vowels(settings, EnvironmentSetup(limit=1))
    return TrainingRun(config, settings, Vowels(settings, EnvironmentSetup()), held_out, (), model_dir, out)


async def finished(
    run: TrainingRun, stop: asyncio.Event | None = None, *, executor: str = NOWHERE, limiter: str = NOWHERE
) -> bool:
    """Says whether the run reached its last step."""
    console, stop = Console(file=io.StringIO()), stop or asyncio.Event()
    return await train(run, executor=executor, limiter=limiter, console=console, stop=stop)


def lines(out: Path) -> list[dict[str, Any]]:
    """The whole lines of metrics.jsonl, of which a killed run may have left half a one."""
    path = out / "metrics.jsonl"
    whole = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in whole if line.endswith("\n")]
