"""`fairbox check-env`: whether the tasks of an environment are fit to train on.

Their solutions must be worth 1 and nothing 0, each time; cheats must be worth nothing; neither tests nor solution nor
later history may lie in an agent's image. Needs an executor, with the tasks' images (docs/how-to/check-env.md).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from executor_service import ExecutorClient
from fairbox.config import check, setting
from fairbox.errors import EXIT_FAILURE, ConfigError
from rollout.env_check import CheckPlan, EnvironmentCheck, TaskReport
from rollout.envs.base import Environment, EnvironmentSetup
from rollout.envs.registry import load_run


@dataclass(frozen=True)
class CheckEnvConfig:
    """Settings of `fairbox check-env`: env, data, n and env_config.* are those of a run."""

    data: str = setting(help="File or folder of its tasks.")
    env: str = setting("harbor", help="Environment whose tasks are checked: harbor, swe or code, or a module:class.")
    n: int | None = setting(None, least=1, help="Tasks from the beginning of the data; none: all.")
    executor: str = setting("127.0.0.1:50051", help="Address of an executor that has the images of the tasks.")
    repeats: int = setting(3, least=1, most=1000, help="Times that solution and nothing are graded each.")
    cheats: bool = setting(True, help="Play the library of cheats too: 12 to 40 a task.")
    parallel: int = setting(2, least=1, help="Plays at once.")
    json: str | None = setting(None, help="File for the findings, as JSON; none: none is written.")

    def validate(self) -> None:
        """ConfigError for what types can't say."""
        check(self)
        if self.json is not None and not Path(self.json).absolute().parent.is_dir():
            raise ConfigError(f"json is {self.json!r}, whose folder is not there")


def main(argv: Sequence[str]) -> int:
    """Entry point; 0 when every task is sound."""
    config, kind, settings = load_run(
        CheckEnvConfig, prefix="FAIRBOX_CHECK_ENV", prog="fairbox check-env", description=__doc__ or "", argv=argv
    )
    environment = kind.make(settings, EnvironmentSetup(data=Path(config.data).expanduser(), limit=config.n))
    reports = asyncio.run(_check(config, environment))
    if config.json is not None:
        Path(config.json).write_text(json.dumps([each.tree() for each in reports], indent=1) + "\n")
    broken = sum(not each.sound for each in reports)
    print(f"{len(reports)} tasks, {broken} of them broken")
    return EXIT_FAILURE if broken else 0


async def _check(config: CheckEnvConfig, environment: Environment) -> list[TaskReport]:
    plan = CheckPlan(config.repeats, config.cheats, config.parallel)
    async with ExecutorClient(config.executor) as executor:
        return await EnvironmentCheck(executor, environment, plan).run(lambda report: print(report, flush=True))
