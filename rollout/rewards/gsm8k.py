"""GSM8K: whether the answer is the right number. Pure.

The answer is what stands after the last `####` (strict), or the last number of the text (flexible): verl's two methods
of the same names. Numbers are compared as numbers: `220000.0`, `220,000`, `$220000` and `220000 dollars` are equal,
where verl compares texts. A fraction such as `1/2` is no number here.
"""

from __future__ import annotations

import re
from decimal import Decimal
from enum import StrEnum

from executor_service import Cause
from rollout.rewards.base import NotScored, Reward, Sample
from rollout.rewards.registry import reward

_MARK = "####"
_NUMBER = re.compile(
    r"""(?<![\w.,/])               # not inside a word, a number or a fraction
        (?P<sign>[-+\u2212]?)\s?   # ASCII or typographic minus
        (?:[$€£]\s?)?
        (?P<digits>\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d*)?|\.\d+)
        (?![\d/]|,\d|\.\d)         # nor the beginning of something longer
    """,
    re.VERBOSE,
)


class AnswerMethod(StrEnum):
    """Place of the answer in a text."""

    STRICT = "strict"
    """After the last `####`, on its line."""
    FLEXIBLE = "flexible"
    """It is the last number, wherever it stands."""


def parse_number(text: str) -> Decimal | None:
    """The first number in a text; None if there is none. Signs, currency and thousands commas are understood."""
    match = _NUMBER.search(text)
    return None if match is None else _value(match)


def _value(match: re.Match[str]) -> Decimal:
    value = Decimal(match["digits"].replace(",", "").rstrip("."))
    return -value if match["sign"] in ("-", "\u2212") else value


def extract_answer(text: str, method: AnswerMethod = AnswerMethod.STRICT) -> Decimal | None:
    """The number that a text answers with; None if there is none."""
    if method is AnswerMethod.FLEXIBLE:
        numbers = list(_NUMBER.finditer(text))
        return _value(numbers[-1]) if numbers else None
    _, mark, rest = text.rpartition(_MARK)
    return parse_number(rest.partition("\n")[0]) if mark else None


def gsm8k_reward(
    text: str, ground_truth: str, *, method: AnswerMethod = AnswerMethod.STRICT, format_score: float = 0.0
) -> Reward:
    """1.0 for the right answer, `format_score` for a wrong one, 0.0 for none. Parts: `correct`, `answered` (whether
    there was a number where `method` looks for one). Raises NotScored (TASK) if the ground truth is no number."""
    answer, truth = extract_answer(text, method), parse_number(ground_truth)
    if truth is None:
        raise NotScored(Cause.TASK, f"the ground truth is {ground_truth[:40]!r}, must be a number")
    correct, answered = float(answer == truth), float(answer is not None)
    return Reward(correct or answered * format_score, {"correct": correct, "answered": answered})


@reward("gsm8k")
def gsm8k(sample: Sample, *, method: AnswerMethod = AnswerMethod.STRICT, format_score: float = 0.0) -> Reward:
    """`gsm8k_reward` of the last turn."""
    return gsm8k_reward(sample.text, sample.ground_truth, method=method, format_score=format_score)
