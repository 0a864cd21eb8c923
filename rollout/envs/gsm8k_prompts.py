"""Prompts of word problems. Pure.

The two worked examples with the code interpreter are conversation turns of the prompt: prompt tokens, never trained on.
They show the format that small models would not find by themselves; one name for the result keeps such a model from
copying the question into the code.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from rollout.tokens.tokenizer import Message

SYSTEM = "You write Python code. You answer every question by calling code_interpreter once."
ASK = "\nWrite Python code that prints the answer."
THINK = "Let's think step by step and output the final answer after `####`."
"""verl's wording, which its GSM8K data and published runs have."""
SUBMIT = (
    "You are a math expert. You are given a question and you need to solve it step by step. Reasoning step by step "
    "before any tool call. You should use the `calc_gsm8k_reward` tool after step by step solving the question, before "
    "generate final answer at least once and refine your answer if necessary. Put your final answer in the format of "
    "`#### <answer>`."
)
"""The same, of its data with the tool."""


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


def plain_prompt(question: str) -> tuple[Message, ...]:
    """verl's prompt: the question, and where the answer is to stand."""
    return ({"role": "user", "content": f"{question} {THINK}"},)


def tool_prompt(question: str) -> tuple[Message, ...]:
    """verl's prompt where there is the tool calc_gsm8k_reward."""
    return ({"role": "system", "content": SUBMIT}, *plain_prompt(question))


def code_prompt(question: str) -> tuple[Message, ...]:
    """The worked examples, then the question."""
    messages: list[Message] = [{"role": "system", "content": SYSTEM}]
    for example in EXAMPLES:
        call = json.dumps({"name": "code_interpreter", "arguments": {"code": example.code}})
        messages += [
            {"role": "user", "content": example.question + ASK},
            {"role": "assistant", "content": f"<tool_call>\n{call}\n</tool_call>"},
            {"role": "tool", "content": example.output},
            {"role": "assistant", "content": f"#### {example.answer}"},
        ]
    return (*messages, {"role": "user", "content": question.strip() + ASK})
