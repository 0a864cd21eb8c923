"""GSM8K's reward as a tool: the model submits an answer and is told what it is worth. verl's `Gsm8kTool`, as it was.

The answer is the last number of what is submitted. A call gives `improved` where its answer is worth more than the one
before (the first one: than 0), and `not_improved`, a step's penalty, else. What the tool gives for the trajectory is
what the last answer is worth.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from fairbox.config import setting
from rollout.rewards.gsm8k import AnswerMethod, gsm8k_reward, parse_number
from rollout.tools.base import InfraError, Tool, ToolOutcome, ToolResponse
from rollout.tools.schema import ParameterSchema, ToolSchema
from rollout.tools.text import cut_text

_MOST_CHARS = 1000
"""Most characters of an answer that the response shows the model again."""


@dataclass(frozen=True)
class Gsm8kRewardConfig:
    """Settings of the tool calc_gsm8k_reward."""

    improved: float = setting(0.0, finite=True, help="Reward of a call whose answer is worth more than the one before.")
    not_improved: float = setting(-0.05, finite=True, help="Reward of any other call.")
    format_score: float = setting(
        0.0, finite=True, help="What a wrong number is worth; a right one is worth 1, no number 0."
    )


@dataclass(frozen=True, slots=True)
class _Submissions:
    ground_truth: str
    worth: float = 0.0
    """Reward of the last answer."""


class _AnswerSchema(ToolSchema):
    """The answer is a text; a number is taken for one, as verl's tool does."""

    def problem(self, arguments: Mapping[str, Any]) -> str | None:
        answer = arguments.get("answer")
        number = isinstance(answer, int | float) and not isinstance(answer, bool)
        return super().problem({**arguments, "answer": str(answer)} if number else arguments)


class Gsm8kRewardTool(Tool):
    """One object for all trajectories. A task's option is `ground_truth`, alone or below verl's `create_kwargs`."""

    config_type: ClassVar[type[Gsm8kRewardConfig]] = Gsm8kRewardConfig
    default_schema: ClassVar[ToolSchema] = _AnswerSchema(
        "calc_gsm8k_reward",
        "A tool for calculating the reward of gsm8k. (1.0 if your answer is correct, 0.0 if your answer is incorrect)",
        {
            "answer": ParameterSchema("string", "The model's answer to the GSM8K math problem, must be a digits"),
        },
        required=("answer",),
    )
    """verl's wording."""
    repeatable = True
    parallel = False
    """Calls run one after another: whether an answer is better depends on the one before."""

    def __init__(self, config: Gsm8kRewardConfig | None = None, *, schema: ToolSchema | None = None) -> None:
        super().__init__(config, schema=schema)
        self._live: dict[str, _Submissions] = {}

    async def create(self, trajectory_id: str, **options: Any) -> None:
        """Raises InfraError where the task has no ground truth, or one that is no number."""
        truth = (options.get("create_kwargs") or options).get("ground_truth")
        if not isinstance(truth, str) or parse_number(truth) is None:
            said = f"the task's option ground_truth is {truth!r}"
            raise InfraError(f"{said}, must be a number, as a text")
        self._live[trajectory_id] = _Submissions(truth)

    async def execute(
        self, trajectory_id: str, arguments: Mapping[str, Any], *, time_limit_s: float | None = None
    ) -> ToolResponse:
        """Tells the model the reward of its answer, in verl's words."""
        before, config = self._live[trajectory_id], self.config
        answer = str(arguments["answer"])
        reward = gsm8k_reward(
            answer, before.ground_truth, method=AnswerMethod.FLEXIBLE, format_score=config.format_score
        )
        self._live[trajectory_id] = _Submissions(before.ground_truth, reward.value)
        shown, cut = cut_text(repr(answer), _MOST_CHARS)
        text = f"Current parsed answer={shown} reward={reward.value}"
        step = config.improved if reward.value > before.worth else config.not_improved
        size = len(repr(answer).encode("utf-8", "replace"))
        return ToolResponse(text, ToolOutcome.OK, truncated=cut, total_bytes=size, reward=step)

    async def branch(self, trajectory_id: str, branches: Sequence[str]) -> None:
        """Each branch goes on from the same answer."""
        self._live |= dict.fromkeys(branches, self._live[trajectory_id])

    async def calc_reward(self, trajectory_id: str) -> float | None:
        """Returns the reward of the last answer; 0.0 if none was submitted."""
        return self._live[trajectory_id].worth

    async def release(self, trajectory_id: str) -> None:
        self._live.pop(trajectory_id, None)
