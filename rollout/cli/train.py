"""`fairbox train`: tasks in; a model that is better at them, its checkpoints and a line of figures a step out."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
from collections.abc import Sequence

from rich.console import Console

from fairbox.errors import EXIT_FAILURE, EXIT_INTERRUPTED
from fairbox.extras import require
from fairbox.loading import Interrupted, until_set
from fairbox.net.serving import run_service
from fairbox.telemetry.program import open_telemetry
from rollout.build import environment_setup, tool_specs
from rollout.cli.rollout import out_folder
from rollout.engines.model_store import find_model
from rollout.envs.registry import load_run
from rollout.services import open_services


def main(argv: Sequence[str]) -> int:
    """Entry point; 0 when the last step was reached, 130 after Ctrl-C."""
    require("training", "engine,train", "torch", "transformers")
    from rollout.training.config import TrainConfig
    from rollout.training.run.run import TrainingRun, train

    config, kind, settings = load_run(
        TrainConfig, prefix="TRAIN", prog="fairbox train", description=__doc__ or "", argv=argv
    )
    environment = kind.make(settings, environment_setup(config, data=config.data, limit=config.n))
    held_out = None
    if config.eval_data is not None:
        held_out = kind.make(settings, environment_setup(config, data=config.eval_data, limit=config.eval_n))
    specs = tool_specs(config, environment)
    model_dir, console = find_model(config.model), Console(file=sys.stderr)
    run = TrainingRun(config, settings, environment, held_out, specs, model_dir, out_folder(config))
    finished: list[bool] = []

    async def serve(stop: asyncio.Event) -> None:
        async with contextlib.AsyncExitStack() as stack:
            async with until_set(stop):
                instance = f"{socket.gethostname()}:{os.getpid()}"
                await stack.enter_async_context(open_telemetry(config, service="rollout", instance=instance))
                limiter, executor = config.limiter, config.executor
                if not config.service.target:
                    services = open_services(config, environment, specs, console)
                    limiter, executor = await stack.enter_async_context(services)
            finished.append(await train(run, executor=executor, limiter=limiter, console=console, stop=stop))
            if finished[-1]:
                console.print(f"the trained model: {run.out / 'model'}", soft_wrap=True)
            else:
                console.print(f"interrupted; resume=true out={run.out} goes on", soft_wrap=True)

    async def until_interrupted(stop: asyncio.Event) -> None:
        try:
            await serve(stop)
        except Interrupted:
            console.print("interrupted before a step began")

    code = run_service(until_interrupted, name="fairbox train")
    if code == EXIT_INTERRUPTED or finished == [True]:
        return code
    return code or EXIT_FAILURE
