"""Word problems, solved with the code interpreter: prompt, worked examples, reward.

The two worked examples are conversation turns of the prompt: prompt tokens, never trained on. They show the format that
small models would not find by themselves; one name for the result keeps such a model from
copying the question into the code. The reward is GSM8K's, on the last turn alone.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass

from rollout.data.rows import Row
from rollout.loop.results import TrajectoryResult
from rollout.loop.task import Task
from rollout.rewards.base import Reward
from rollout.rewards.gsm8k import gsm8k_reward
from rollout.tokens.tokenizer import Message

__all__ = ["EXAMPLES", "Gsm8kEnvironment", "WorkedExample"]

SYSTEM = "You write Python code. You answer every question by calling code_interpreter once."
ASK = "\nWrite Python code that prints the answer."


@dataclass(frozen=True, slots=True)
class WorkedExample:
    """A problem with the code that solves it and what that prints."""

    question: str
    code: str
    output: str
    answer: str


EXAMPLES = (
    WorkedExample(
        question="A pen costs $3 and a book costs $12. How much do 4 pens and 2 books cost?",
        code="answer = 4 * 3 + 2 * 12\nprint(answer)",
        output="36",
        answer="36",
    ),
    WorkedExample(
        question="Sam had 50 marbles. He lost 8 and gave half of the rest to Ann. How many marbles does Sam have now?",
        code="answer = (50 - 8) / 2\nprint(answer)",
        output="21.0",
        answer="21",
    ),
)


class Gsm8kEnvironment:
    """Tasks of GSM8K rows."""

    def __init__(self, rows: Sequence[Row], examples: Sequence[WorkedExample] = EXAMPLES) -> None:
        self._rows = tuple(rows)
        self._examples = tuple(examples)

    def tasks(self) -> list[Task]:
        """One per row. Its uid is made of the question and the row's place, so that it is the same in every run."""
        return [
            Task(
                uid=_uid(row.question, index),
                messages=self._messages(row.question),
                ground_truth=row.ground_truth,
                data_source=row.data_source,
                where=row.where,
            )
            for index, row in enumerate(self._rows)
        ]

    def score(self, task: Task, result: TrajectoryResult) -> Reward:
        """GSM8K's reward of the last turn."""
        return gsm8k_reward(result.final_text, task.ground_truth)

    def _messages(self, question: str) -> tuple[Message, ...]:
        messages: list[Message] = [{"role": "system", "content": SYSTEM}]
        for example in self._examples:
            call = json.dumps({"name": "code_interpreter", "arguments": {"code": example.code}})
            messages += [
                {"role": "user", "content": example.question + ASK},
                {"role": "assistant", "content": f"<tool_call>\n{call}\n</tool_call>"},
                {"role": "tool", "content": example.output},
                {"role": "assistant", "content": f"#### {example.answer}"},
            ]
        return (*messages, {"role": "user", "content": question.strip() + ASK})


def _uid(question: str, index: int) -> str:
    return f"{index}-{hashlib.sha256(question.encode('utf-8', 'surrogatepass')).hexdigest()[:12]}"
