"""GSM8K as verl's data: rows with a prompt, a ground truth, and options for the tool calc_gsm8k_reward.

The columns are those of verl's `gsm8k.py` and `gsm8k_multiturn_w_tool.py`. Invariant: every ground truth is a number,
and the row's own answer is worth 1 against it.
"""

from __future__ import annotations

from typing import Any

from rollout.data.rows import DataError, Row
from rollout.envs.gsm8k_prompts import plain_prompt, tool_prompt
from rollout.rewards.gsm8k import gsm8k_reward
from rollout.tools.gsm8k_reward import Gsm8kRewardTool

__all__ = ["verl_row"]


def verl_row(row: Row, index: int, *, split: str, tool: bool, agent_name: str | None = None) -> dict[str, Any]:
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
