"""Word problems: prompts in several styles, their tools, and GSM8K's reward of the last turn."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from fairbox.config import check, setting
from fairbox.errors import ConfigError
from rollout.data.rows import DataError, Row, read_rows
from rollout.envs.base import Environment, EnvironmentSetup
from rollout.envs.gsm8k_prompts import code_prompt, plain_prompt, tool_prompt
from rollout.envs.registry import environment
from rollout.loop.task import Task
from rollout.rewards import AnswerMethod, Composition, parse_rewards
from rollout.tokens.tokenizer import Message
from rollout.tools.gsm8k_reward import Gsm8kRewardConfig, Gsm8kRewardTool
from rollout.tools.registry import ToolSpec


class PromptStyle(StrEnum):
    """Style of a problem's prompt."""

    CODE = "code"
    """Two worked examples with the code interpreter, then the question."""
    PLAIN = "plain"
    """The question, and that the answer follows `####`: verl's prompt. Without tools."""
    SUBMIT = "submit"
    """verl's prompt of its data with the tool calc_gsm8k_reward, and that tool."""
    DATA = "data"
    """The messages that each row has in `prompt`."""


@dataclass(frozen=True)
class Gsm8kConfig:
    """Settings of the environment gsm8k."""

    prompt: str = setting(
        "code",
        choices=PromptStyle,
        help="code (worked examples, code interpreter), plain, submit (reward tool), data.",
    )
    method: str = setting(
        "strict",
        choices=AnswerMethod,
        help="Where the answer is: strict (after the last ####), flexible (last number).",
    )
    format_score: float = setting(0.0, finite=True, help="Reward of a wrong answer in the right form.")
    turn_rewards: bool = setting(False, help="Add what tools give for single calls to the reward, each at its turn.")
    reward_tool: Gsm8kRewardConfig = setting(factory=Gsm8kRewardConfig, help="submit: the tool calc_gsm8k_reward.")

    def validate(self) -> None:
        """Raises ConfigError for what types can't say."""
        check(self, "env_config")

    def rewards(self) -> Composition:
        """The environment's own reward."""
        own = {"fn": "gsm8k", "args": {"method": self.method, "format_score": self.format_score}}
        return parse_rewards([own, *[{"fn": "tool_call_rewards"}] * self.turn_rewards])


@environment("gsm8k", Gsm8kConfig)
class Gsm8kEnvironment(Environment):
    """Tasks of the rows of the run's data, or of the built-in ones. Raises ConfigError and DataError."""

    def __init__(self, config: Gsm8kConfig, setup: EnvironmentSetup) -> None:
        if setup.reward is not None and config.rewards() != Gsm8kConfig().rewards():
            said = "env_config.method, format_score or turn_rewards is set"
            raise ConfigError(f"{said}, which has no meaning with a reward of the run: set it there")
        self._rows = read_rows(setup.data, setup.limit)
        self._config = config
        self.reward = setup.reward or config.rewards()

    def tools(self) -> tuple[ToolSpec, ...] | None:
        """None: the run's own, which are the code interpreter."""
        match PromptStyle(self._config.prompt):
            case PromptStyle.PLAIN:
                return ()
            case PromptStyle.SUBMIT:
                return (ToolSpec("env_config.reward_tool", Gsm8kRewardTool, self._config.reward_tool),)
            case _:
                return None

    def tasks(self) -> list[Task]:
        """One task per row. Raises DataError for a row without messages if the style is `data`."""
        return [
            Task(
                uid=uid_of(row.question, index),
                messages=self._messages(row),
                ground_truth=row.ground_truth,
                data_source=row.data_source,
                where=row.where,
                tools_kwargs=self._tools_kwargs(row),
                row=row.columns,
            )
            for index, row in enumerate(self._rows)
        ]

    def _messages(self, row: Row) -> tuple[Message, ...]:
        match PromptStyle(self._config.prompt):
            case PromptStyle.CODE:
                return code_prompt(row.question)
            case PromptStyle.PLAIN:
                return plain_prompt(row.question)
            case PromptStyle.SUBMIT:
                return tool_prompt(row.question)
            case PromptStyle.DATA:
                return _own_prompt(row)

    def _tools_kwargs(self, row: Row) -> dict[str, dict[str, Any]]:
        if self._config.prompt == PromptStyle.DATA:
            extra = row.columns.get("extra_info")
            given = extra.get("tools_kwargs") if isinstance(extra, Mapping) else None
            return {name: dict(options) for name, options in (given or {}).items() if options}
        if self._config.prompt == PromptStyle.SUBMIT:
            return {Gsm8kRewardTool.default_schema.name: {"ground_truth": row.ground_truth}}
        return {}


def _own_prompt(row: Row) -> tuple[Message, ...]:
    prompt = row.columns.get("prompt")
    messages = prompt if isinstance(prompt, list) else []
    texts = [each.get(key) for each in messages if isinstance(each, Mapping) for key in ("role", "content")]
    if not messages or len(texts) != 2 * len(messages) or not all(isinstance(text, str) for text in texts):
        raise DataError(f"{row.where}: prompt must be a list of messages, each with role and content")
    return tuple({"role": each["role"], "content": each["content"]} for each in messages)


def uid_of(question: str, index: int) -> str:
    """The uid of a row's task, made of the question and the row's place, so that it is the same in every run."""
    return f"{index}-{hashlib.sha256(question.encode('utf-8', 'surrogatepass')).hexdigest()[:12]}"
