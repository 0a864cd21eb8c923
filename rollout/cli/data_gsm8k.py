"""`fairbox data gsm8k`: GSM8K's own files as verl's parquet, with or without the tool calc_gsm8k_reward."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fairbox.config import load, setting
from fairbox.errors import ConfigError
from rollout.data.gsm8k import verl_row
from rollout.data.rows import read_rows
from rollout.data.whole import write_parquet

__all__ = ["Gsm8kDataConfig", "main"]


@dataclass(frozen=True)
class Gsm8kDataConfig:
    """Settings of `fairbox data gsm8k`."""

    input: str = setting(help="GSM8K's rows, .jsonl or .parquet, with question and answer.")
    out: str = setting(help="The file to write, .parquet.")
    split: str | None = setting(None, help="Name of the split in extra_info; none: the input's, without its ending.")
    tool: bool = setting(True, help="With the prompt and the options of the tool calc_gsm8k_reward.")
    agent_name: str | None = setting(
        None, help="Agent loop that verl plays them with: tool_agent, fairbox; none: verl's."
    )
    limit: int | None = setting(None, least=1, help="Most rows that are read; none: all.")

    def validate(self) -> None:
        """ConfigError for what types can't say."""
        if Path(self.out).suffix != ".parquet":
            raise ConfigError(f"out is {self.out!r}, must end in .parquet")


def main(argv: Sequence[str]) -> int:
    """Entry point; 0 when every row was written."""
    config = load(
        Gsm8kDataConfig, prefix="FAIRBOX_DATA_GSM8K", prog="fairbox data gsm8k", description=__doc__ or "", argv=argv
    )
    path = Path(config.input).expanduser()
    split = path.stem if config.split is None else config.split
    rows = [
        verl_row(row, index, split=split, tool=config.tool, agent_name=config.agent_name)
        for index, row in enumerate(read_rows(path, config.limit))
    ]
    print(f"{write_parquet(Path(config.out).expanduser(), rows)} rows in {config.out}")
    return 0
