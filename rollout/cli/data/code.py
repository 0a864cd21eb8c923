"""`fairbox data code`: programming problems, as they are published, as rows that env=code and verl read.

Writes a parquet file, and beside it the rows that were left out; docs/how-to/datasets.md has the kinds of rows.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fairbox.config import load, setting
from fairbox.errors import ConfigError
from rollout.cli.data.swebench import check_input, read_input
from rollout.data.code import Converted, usable_problems, verl_rows
from rollout.data.code.executed import solved, with_tests
from rollout.data.records import DataError
from rollout.data.whole import write_json_lines, write_parquet


@dataclass(frozen=True)
class CodeDataConfig:
    """Settings of `fairbox data code`."""

    input: str = setting(help="Rows: a .jsonl or .parquet file, or the name of a data set of the hub (OWNER/NAME).")
    out: str = setting(help="The file to write, .parquet; OUT.left_out.jsonl is beside it.")
    split: str = setting("train", help="The split of a data set of the hub.")
    subset: str = setting("default", help="The configuration of a data set of the hub.")
    limit: int | None = setting(None, least=1, help="Most rows that are read; none: all.")
    language: str = setting("python", help="Language that the prompts ask for.")
    executor: str = setting(
        "",
        help="Address of an executor: it makes tests from generators, and grades each row's own solution; rows whose "
        "solution fails are left out.",
    )
    max_mb: int = setting(32, least=1, help="Most megabytes of a problem's tests; the largest beyond it are left out.")

    def validate(self) -> None:
        """ConfigError for what types can't say."""
        if Path(self.out).suffix != ".parquet":
            raise ConfigError(f"out is {self.out!r}, must end in .parquet")
        check_input(self.input)


def main(argv: Sequence[str]) -> int:
    """Entry point; 0 when there are problems. Rows that are left out are named, and don't change that."""
    config = load(
        CodeDataConfig, prefix="FAIRBOX_DATA_CODE", prog="fairbox data code", description=__doc__ or "", argv=argv
    )
    out, found = Path(config.out).expanduser(), Converted()
    records = itertools.islice(read_input(config.input, config.split, config.subset), config.limit)
    problems = usable_problems(records, language=config.language, most_bytes=config.max_mb << 20, found=found)
    problems = with_tests(problems, config.executor, most_bytes=config.max_mb << 20, found=found)
    if config.executor:
        problems = solved(problems, config.executor, found)
    rows = verl_rows(problems, language=config.language, found=found)
    left, first = out.with_suffix(".left_out.jsonl"), next(rows, None)
    if first is not None:
        write_parquet(out, itertools.chain([first], rows), schema=_schema)
    write_json_lines(left, map(asdict, found.left))
    for line in _summary(found, out, left):
        print(line)
    if first is None:
        raise DataError(f"no row of {config.input} became a problem")
    return 0


def _summary(found: Converted, out: Path, left: Path) -> list[str]:
    counts = ", ".join(f"{count} of {source}" for source, count in found.sources.most_common())
    lines = [f"{found.rows} problems in {out}: {counts}"] if found.rows else []
    if found.cut:
        lines.append(f"the largest {found.cases_cut} tests of {found.cut} problems were left out: max_mb allows more")
    if found.unchecked:
        lines.append(f"{found.unchecked} problems have no solution in Python of their own, and were not checked")
    if found.left:
        lines.append(f"left out {len(found.left)} (in {left}):")
        reasons = Counter(each.why.value for each in found.left)
        lines += [f"  {count:>6} {why}" for why, count in reasons.most_common()]
    return lines


def _schema(arrow: Any) -> Any:
    text = arrow.string()
    extra = [("index", arrow.int64()), ("uid", text), ("question", text), ("solution", text)]
    return arrow.schema(
        [
            arrow.field("data_source", text, nullable=False),
            arrow.field("prompt", arrow.list_(arrow.struct([("role", text), ("content", text)])), nullable=False),
            arrow.field("ability", text, nullable=False),
            arrow.field("reward_model", arrow.struct([("style", text), ("ground_truth", text)]), nullable=False),
            arrow.field("extra_info", arrow.struct(extra), nullable=False),
        ]
    )
