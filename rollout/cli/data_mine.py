"""`fairbox data mine`: code search tasks of a repository's history, or of two releases.

Writes train.parquet and validation.parquet into a folder; docs/datasets.md has the columns and the filters.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fairbox.config import load, setting
from fairbox.errors import ConfigError
from rollout.cli.data_swebench import check_split, write_tasks
from rollout.data.swe.mine import MineFilters, mine
from rollout.data.swe.releases import task_of_releases
from rollout.data.swe.rows import SearchTask
from rollout.data.swe.truth import Dialect

__all__ = ["DataMineConfig", "main"]


@dataclass(frozen=True)
class DataMineConfig:
    """Settings of `fairbox data mine`."""

    out: str = setting(help="Folder for train.parquet and validation.parquet.")
    repo: str | None = setting(None, help="A git repository.")
    old: str | None = setting(None, help="Instead of repo: a folder or an archive, which is searched.")
    new: str | None = setting(None, help="With old: what came after it, a folder or an archive.")
    statement: str = setting("", help="With old and new: what is asked.")
    name: str | None = setting(None, help="OWNER/NAME in the rows; none: local/ and the name of the folder.")
    revision: str = setting("HEAD", help="Commits that this can reach are looked at.")
    limit: int | None = setting(None, help="Most tasks, of commits chosen by the seed; none: all.")
    max_files: int = setting(5, help="Most .py files, tests not counted, that a commit may change.")
    max_lines: int = setting(400, help="Most lines of them that a commit may add and remove.")
    min_words: int = setting(5, help="Fewest words of a message.")
    allow_leaks: bool = setting(False, help="Messages may name files of the answer.")
    need_entity: bool = setting(True, help="A function or method that was there must be edited.")
    dialect: Dialect = setting(Dialect.CODESCOUT, help="LOCAGENT or CODESCOUT: how modules are named.")
    validation: float = setting(0.1, help="Rows of validation.parquet: a count, or a fraction below 1.")
    seed: int = setting(42, help="Of the choice of commits, and of the shuffle before the split.")

    def validate(self) -> None:
        """ConfigError for what types can't say."""
        check_split(self.validation)
        for name in ("limit", "max_files", "max_lines", "min_words"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} is {value}, must be at least 1")
        if (self.repo is None) == (self.old is None) or (self.old is None) != (self.new is None):
            raise ConfigError("repo, or old and new, must be set, and not both")
        if self.old is not None and not self.statement.strip():
            raise ConfigError("statement is blank; two releases don't say themselves what is asked")
        if self.name is not None and (self.name.count("/") != 1 or not all(self.name.split("/"))):
            raise ConfigError(f"name is {self.name!r}, must be like OWNER/NAME")


def main(argv: Sequence[str]) -> int:
    """Entry point; 0 when there are tasks."""
    config = load(
        DataMineConfig, prefix="FAIRBOX_DATA_MINE", prog="fairbox data mine", description=__doc__ or "", argv=argv
    )
    tasks = _of_history(config, config.repo) if config.repo is not None else [_of_releases(config)]
    write_tasks(Path(config.out).expanduser(), tasks, config.validation, config.seed)
    return 0


def _of_history(config: DataMineConfig, repo: str) -> list[SearchTask]:
    folder = Path(repo).expanduser().resolve()
    filters = MineFilters(config.max_files, config.max_lines, config.min_words, config.allow_leaks, config.need_entity)
    mined = mine(
        folder,
        config.name or f"local/{folder.name.removesuffix('.git')}",
        revision=config.revision,
        limit=config.limit,
        seed=config.seed,
        dialect=config.dialect,
        filters=filters,
        progress=_progress if sys.stderr.isatty() else lambda looked_at: None,
    )
    looked_at = len(mined.tasks) + mined.unfit.total()
    print(f"{len(mined.tasks)} tasks of {looked_at} commits, of {mined.commits} that there are; no tasks are:")
    for why, count in mined.unfit.most_common():
        print(f"  {count:>6} {why}")
    return mined.tasks


def _of_releases(config: DataMineConfig) -> SearchTask:
    assert config.old is not None
    assert config.new is not None
    old, new = (Path(path).expanduser() for path in (config.old, config.new))
    name = config.name or f"local/{old.name.partition('-')[0]}"
    return task_of_releases(old, new, name, config.statement, config.dialect)


def _progress(looked_at: int) -> None:
    if looked_at % 100 == 0:
        print(f"\r{looked_at} commits", end="", file=sys.stderr, flush=True)
