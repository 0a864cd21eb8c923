"""`fairbox data swe`: checks rows of SWE-bench and its like: their solutions must be worth 1, and nothing 0.

Needs an executor that has the images (docs/how-to/swe.md).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from executor_service import ExecutorClient
from fairbox.config import check, load, setting
from fairbox.errors import EXIT_FAILURE, FairboxError
from rollout.envs.swe import RowCheck, SweConfig, SweRow, check_row, read_swe_rows, row_options
from rollout.envs.swe.environment import TEST_S, check_places
from rollout.tools.code.runner import ready_image

_MOST_NAMES = 5
"""Failed tests of a row that are printed."""


@dataclass(frozen=True)
class SweDataConfig:
    """Settings of `fairbox data swe`."""

    data: str = setting(help="File of rows: .jsonl or .parquet.")
    n: int | None = setting(None, least=1, help="Rows from its beginning; none: all.")
    executor: str = setting("127.0.0.1:50051", help="Address of an executor that has the images of the rows.")
    image: str | None = setting(None, help="Name of each row's image, as env_config.image of a run.")
    working_dir: str = setting("/testbed", help="The repository's folder, as env_config.working_dir of a run.")
    setup: str = setting("", help="Bash commands before the tests, as env_config.setup of a run.")
    reverse: bool = setting(
        False, help="The column patch makes what is to be fixed, as in SWE-smith: the solution undoes it."
    )
    memory_mb: int | None = setting(None, least=1, help="Memory of the tests, MiB; none: the executor's.")
    test_timeout: float = setting(TEST_S, above=0, help="Most seconds for a row's tests.")
    parallel: int = setting(2, least=1, help="Rows that are checked at once.")

    @property
    def environment(self) -> SweConfig:
        """The settings of a run with these rows."""
        return SweConfig(
            image=self.image, working_dir=self.working_dir, setup=self.setup, test_timeout=self.test_timeout
        )

    def validate(self) -> None:
        """ConfigError for what types can't say."""
        check(self)
        check_places(self.image, self.working_dir, "")


def main(argv: Sequence[str]) -> int:
    """Entry point; 0 when every row is sound."""
    config = load(
        SweDataConfig, prefix="FAIRBOX_DATA_SWE", prog="fairbox data swe", description=__doc__ or "", argv=argv
    )
    rows = read_swe_rows(Path(config.data).expanduser(), config.n)
    options = [row_options(row, config.environment) for row in rows]  # all of them, before anything runs
    broken = asyncio.run(_check(config, list(zip(rows, options, strict=True))))
    print(f"{len(rows)} rows, {broken} of them broken")
    return EXIT_FAILURE if broken else 0


async def _check(config: SweDataConfig, rows: Sequence[tuple[SweRow, dict[str, Any]]]) -> int:
    """Number of broken rows. Each is printed as soon as it is known."""
    room = asyncio.Semaphore(config.parallel)
    memory_bytes = (config.memory_mb or 0) << 20

    async def sound(executor: ExecutorClient, row: SweRow, options: dict[str, Any]) -> bool:
        tests, image = options["tests"], options["image"]
        async with room:
            try:
                image = await ready_image(executor, image)
                found = await check_row(executor, row, tests, image, memory_bytes=memory_bytes, reverse=config.reverse)
            except FairboxError as error:
                print(f"{row.instance_id}: could not be checked: {error}")
                return False
        print(_line(found))
        return found.sound

    async with ExecutorClient(config.executor) as executor, asyncio.TaskGroup() as group:
        checks = [group.create_task(sound(executor, *each)) for each in rows]
    return sum(not check.result() for check in checks)


def _line(found: RowCheck) -> str:
    gold = "no solution" if found.gold is None else f"solution {found.gold.numbers['reward']:g}"
    line = f"{found.instance_id}: {gold}, nothing {found.nothing.numbers['reward']:g}"
    if found.sound:
        return line
    worst = found.gold if found.gold is not None and found.gold.numbers["reward"] < 1 else found.nothing
    names = [f"failed: {name}" for name in worst.failed[:_MOST_NAMES]]
    if len(worst.failed) > _MOST_NAMES:
        names.append(f"and {len(worst.failed) - _MOST_NAMES} more")
    return "\n  ".join([f"{line}: BROKEN", *names, *worst.said.splitlines()])
