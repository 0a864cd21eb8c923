"""`fairbox data mine`: code search tasks of a repository's history.

Writes train.parquet and validation.parquet into a folder; docs/how-to/datasets.md has the columns and the filters.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fairbox.config import load, setting
from fairbox.errors import ConfigError
from rollout.cli.data.swebench import check_split, write_tasks
from rollout.data.swe.mine import mine
from rollout.data.swe.truth import Dialect


@dataclass(frozen=True)
class DataMineConfig:
    """Settings of `fairbox data mine`."""

    out: str = setting(help="Folder for train.parquet and validation.parquet.")
    repo: str = setting(help="A git repository; commits that its HEAD can reach are looked at.")
    name: str | None = setting(None, help="OWNER/NAME in the rows; none: local/ and the name of the folder.")
    limit: int | None = setting(None, least=1, help="Most tasks, of commits chosen by the seed; none: all.")
    dialect: Dialect = setting(Dialect.CODESCOUT, help="LOCAGENT or CODESCOUT: how modules are named.")
    validation: float = setting(0.1, help="Rows of validation.parquet: a count, or a fraction below 1.")
    seed: int = setting(42, help="Seed of the choice of commits, and of the shuffle before the split.")

    def validate(self) -> None:
        """ConfigError for what types can't say."""
        check_split(self.validation)
        if self.name is not None and (self.name.count("/") != 1 or not all(self.name.split("/"))):
            raise ConfigError(f"name is {self.name!r}, must be like OWNER/NAME")


def main(argv: Sequence[str]) -> int:
    """Entry point; 0 when there are tasks."""
    config = load(
        DataMineConfig, prefix="FAIRBOX_DATA_MINE", prog="fairbox data mine", description=__doc__ or "", argv=argv
    )
    folder = Path(config.repo).expanduser().resolve()
    mined = mine(
        folder,
        config.name or f"local/{folder.name.removesuffix('.git')}",
        limit=config.limit,
        seed=config.seed,
        dialect=config.dialect,
        progress=_progress if sys.stderr.isatty() else lambda looked_at: None,
    )
    looked_at = len(mined.tasks) + mined.unfit.total()
    print(f"{len(mined.tasks)} tasks of {looked_at} commits, of {mined.commits} that there are; no tasks are:")
    for why, count in mined.unfit.most_common():
        print(f"  {count:>6} {why}")
    write_tasks(Path(config.out).expanduser(), mined.tasks, config.validation, config.seed)
    return 0


def _progress(looked_at: int) -> None:
    if looked_at % 100 == 0:
        print(f"\r{looked_at} commits", end="", file=sys.stderr, flush=True)
