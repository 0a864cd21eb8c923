"""`fairbox data swebench`: code search tasks of SWE-bench, SWE-Gym, SWE-smith and their like.

Writes train.parquet, validation.parquet and left_out.jsonl into a folder; docs/how-to/datasets.md has the columns.
"""

from __future__ import annotations

import itertools
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fairbox.config import load, setting
from fairbox.errors import ConfigError
from rollout.data.records import DataError, read_records
from rollout.data.swe.build import Built, build
from rollout.data.swe.hub import fetch, is_dataset
from rollout.data.swe.rows import SearchTask, split, write_search_tasks
from rollout.data.swe.trees import Clones
from rollout.data.swe.truth import Dialect
from rollout.data.whole import write_json_lines


@dataclass(frozen=True)
class SwebenchConfig:
    """Settings of `fairbox data swebench`."""

    input: str = setting(help="Rows: a .jsonl or .parquet file, or the name of a data set of the hub (OWNER/NAME).")
    out: str = setting(help="Folder for train.parquet, validation.parquet and left_out.jsonl.")
    split: str = setting("train", help="The split of a data set of the hub.")
    subset: str = setting("default", help="The configuration of a data set of the hub.")
    limit: int | None = setting(None, least=1, help="Most rows that are read; none: all.")
    repos: str | None = setting(None, help="Folder of git repositories OWNER__NAME or OWNER/NAME, for the truth.")
    dialect: Dialect = setting(Dialect.CODESCOUT, help="LOCAGENT or CODESCOUT: how modules are named.")
    use_patch: bool = setting(
        False, help="The patch makes the defect (SWE-smith), in rows that have no column use_patch of their own."
    )
    need_truth: bool = setting(False, help="Leave rows out that have no file_changes, given or made.")
    validation: float = setting(100, help="Rows of validation.parquet: a count, or a fraction below 1.")
    seed: int = setting(42, help="Seed of the shuffle before the split.")

    def validate(self) -> None:
        """ConfigError for what types can't say."""
        check_split(self.validation)
        if self.repos is not None and not Path(self.repos).expanduser().is_dir():
            raise ConfigError(f"repos is {self.repos!r}, which is no folder")
        check_input(self.input)


def main(argv: Sequence[str]) -> int:
    """Entry point; 0 when there are tasks. Rows that are left out are named, and don't change that."""
    config = load(
        SwebenchConfig,
        prefix="FAIRBOX_DATA_SWEBENCH",
        prog="fairbox data swebench",
        description=__doc__ or "",
        argv=argv,
    )
    out = Path(config.out).expanduser()
    records = itertools.islice(read_input(config.input, config.split, config.subset), config.limit)
    clones = None if config.repos is None else Clones(Path(config.repos).expanduser())
    built = build(
        records,
        clones,
        dialect=config.dialect,
        use_patch=config.use_patch,
        need_truth=config.need_truth,
    )
    write_json_lines(out / "left_out.jsonl", map(asdict, built.left))
    for repository, why in ({} if clones is None else clones.refused).items():
        print(f"fairbox data swebench: {repository} {why}", file=sys.stderr)
    for line in _summary(built, out):
        print(line)
    write_tasks(out, built.tasks, config.validation, config.seed)
    return 0


def read_input(name: str, split_name: str, subset: str) -> Iterator[tuple[str, Any]]:
    """Rows of a file, or of a data set of the hub."""
    path = Path(name).expanduser()
    if path.is_file() or not is_dataset(name):
        return read_records(path)
    return itertools.chain.from_iterable(map(read_records, fetch(name, split_name, subset)))


def check_input(name: str) -> None:
    """ConfigError unless `read_input` may find something of this name."""
    if not is_dataset(name) and not Path(name).expanduser().is_file():
        raise ConfigError(f"input is {name!r}, which is neither a file nor like OWNER/NAME")


def check_split(validation: float) -> None:
    """ConfigError unless it is a fraction or a count."""
    if validation < 0 or (validation >= 1 and validation != int(validation)):
        raise ConfigError(f"validation is {validation:g}, must be a count, or a fraction from 0 to below 1")


def write_tasks(out: Path, tasks: Sequence[SearchTask], validation: float, seed: int) -> None:
    """Both files, and a line for each."""
    if not tasks:
        raise DataError("no row became a task")
    for name, rows in zip(("train", "validation"), split(tasks, validation, seed), strict=True):
        write_search_tasks(out / f"{name}.parquet", rows)
        print(f"{len(rows)} tasks in {out / name}.parquet")


def _summary(built: Built, out: Path) -> list[str]:
    known = sum(task.file_changes is not None for task in built.tasks)
    lines = [f"{len(built.tasks)} tasks, {known} with file_changes, of {len(built.tasks) + len(built.left)} rows"]
    if built.made:
        lines.append(f"truth made from repositories for {built.made}")
    lines += [f"{name}: had another truth, the made one is taken" for name in built.differs]
    if built.left:
        counts = Counter(each.why.value for each in built.left)
        lines.append(f"left out {len(built.left)} (in {out / 'left_out.jsonl'}):")
        lines += [f"  {count:>6} {why}" for why, count in counts.most_common()]
    return lines
