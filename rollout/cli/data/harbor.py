"""`fairbox data harbor`: checks task folders: their own solutions must be worth 1, and untouched images nothing.

Needs an executor that has the images (docs/how-to/harbor.md).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from executor_service import ExecutorClient
from fairbox.config import check, load, setting
from fairbox.errors import EXIT_FAILURE, FairboxError
from rollout.envs.harbor import HarborConfig, HarborTask, TaskCheck, check_task, read_tasks, task_options
from rollout.envs.harbor.environment import check_image
from rollout.envs.harbor.task_file import DEFAULT_TEST_S
from rollout.tools.code.runner import ready_image


@dataclass(frozen=True)
class HarborDataConfig:
    """Settings of `fairbox data harbor`."""

    data: str = setting(help="A task folder, or a folder with task folders in it.")
    executor: str = setting("127.0.0.1:50051", help="Address of an executor that has the images of the tasks.")
    image: str | None = setting(None, help="Name of each task's image, as env_config.image of a run.")
    leave_out: bool = setting(False, help="Leave out tasks that can't be played, as env_config.leave_out of a run.")
    test_timeout: float = setting(DEFAULT_TEST_S, above=0, help="Most seconds for a task's tests, and its solution.")
    parallel: int = setting(2, least=1, help="Tasks that are checked at once.")

    @property
    def environment(self) -> HarborConfig:
        """The settings of a run with these tasks."""
        return HarborConfig(image=self.image, leave_out=self.leave_out, test_timeout=self.test_timeout)

    def validate(self) -> None:
        """ConfigError for what types can't say."""
        check(self)
        check_image(self.image, "image")


def main(argv: Sequence[str]) -> int:
    """Entry point; 0 when every task is sound."""
    config = load(
        HarborDataConfig, prefix="FAIRBOX_DATA_HARBOR", prog="fairbox data harbor", description=__doc__ or "", argv=argv
    )
    tasks = read_tasks(Path(config.data).expanduser(), leave_out=config.leave_out)
    broken = asyncio.run(_check(config, tasks))
    print(f"{len(tasks)} tasks, {broken} of them broken")
    return EXIT_FAILURE if broken else 0


async def _check(config: HarborDataConfig, tasks: Sequence[HarborTask]) -> int:
    """Number of broken tasks. Each is printed as soon as it is known."""
    room = asyncio.Semaphore(config.parallel)

    async def sound(executor: ExecutorClient, task: HarborTask) -> bool:
        options = task_options(task, config.environment)
        async with room:
            try:
                image = await ready_image(executor, options["image"])
                found = await check_task(executor, task, options["tests"], image)
            except FairboxError as error:
                print(f"{task.name}: could not be checked: {error}")
                return False
        print(_line(found))
        return found.sound

    async with ExecutorClient(config.executor) as executor, asyncio.TaskGroup() as group:
        checks = [group.create_task(sound(executor, task)) for task in tasks]
    return sum(not check.result() for check in checks)


def _line(found: TaskCheck) -> str:
    solution = "no solution" if found.solution is None else f"solution {found.solution:g}"
    line = f"{found.name}: {solution}, nothing {found.nothing:g}"
    return line if found.sound else "\n  ".join([f"{line}: BROKEN", *found.said.splitlines()])
