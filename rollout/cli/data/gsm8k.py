"""`fairbox data gsm8k`: GSM8K's own files as verl's parquet, with or without the tool calc_gsm8k_reward.

The columns are those of verl's `gsm8k.py` and `gsm8k_multiturn_w_tool.py`. Invariant: every ground truth is a number,
and the row's own answer is worth 1 against it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairbox.config import load, setting
from fairbox.errors import ConfigError
from rollout.data.rows import DataError, Row, read_rows
from rollout.data.whole import write_parquet
from rollout.envs.gsm8k_prompts import plain_prompt, tool_prompt
from rollout.rewards.gsm8k import gsm8k_reward
from rollout.tools.gsm8k_reward import Gsm8kRewardTool


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
        _verl_row(row, index, split=split, tool=config.tool, agent_name=config.agent_name)
        for index, row in enumerate(read_rows(path, config.limit))
    ]
    print(f"{write_parquet(Path(config.out).expanduser(), rows)} rows in {config.out}")
    return 0


def _verl_row(row: Row, index: int, *, split: str, tool: bool, agent_name: str | None = None) -> dict[str, Any]:
    """A row of verl's, of one of GSM8K's (`question`, `answer`). `tool`: with the prompt and the options of the tool
    calc_gsm8k_reward. `agent_name` is the agent loop that verl is to play it with. Raises DataError."""
    answer, truth = row.columns.get("answer"), row.ground_truth.replace(",", "")
    if not isinstance(answer, str):
        raise DataError(f"{row.where}: needs question and answer, as GSM8K has them")
    if gsm8k_reward(answer, truth).value != 1.0:
        raise DataError(f"{row.where}: its answer is worth nothing against its ground truth {truth!r}")
    tools = {Gsm8kRewardTool.default_schema.name: {"create_kwargs": {"ground_truth": truth}}}
    extra = {"split": split, "index": index, "question": row.question, "answer": answer, "need_tools_kwargs": tool}
    return {
        "data_source": row.data_source,
        **({} if agent_name is None else {"agent_name": agent_name}),
        "prompt": [dict(message) for message in (tool_prompt if tool else plain_prompt)(row.question)],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": truth},
        "extra_info": extra | ({"tools_kwargs": tools} if tool else {}),
    }
