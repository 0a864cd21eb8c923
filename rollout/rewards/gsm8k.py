"""GSM8K: whether the number after the last `####` is the right one. Pure.

Numbers are compared as numbers: `220000.0`, `220,000`, `$220000` and `220000 dollars` are equal. A fraction such as
`1/2` is no number here.
"""

from __future__ import annotations

import re
from decimal import Decimal

from rollout.rewards.base import Reward

__all__ = ["extract_answer", "gsm8k_reward", "parse_number"]

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


def parse_number(text: str) -> Decimal | None:
    """The first number in a text; None when there is none. Signs, currency and thousands commas are understood."""
    match = _NUMBER.search(text)
    if match is None:
        return None
    value = Decimal(match["digits"].replace(",", "").rstrip("."))
    return -value if match["sign"] in ("-", "\u2212") else value


def extract_answer(text: str) -> Decimal | None:
    """The number after the last `####` on its line; None when there is none."""
    _, mark, rest = text.rpartition(_MARK)
    return parse_number(rest.partition("\n")[0]) if mark else None


def gsm8k_reward(text: str, ground_truth: str) -> Reward:
    """1.0 for the right answer, else 0.0. Parts: `correct`, `answered` (whether there was a number after `####`)."""
    answer, truth = extract_answer(text), parse_number(ground_truth)
    assert truth is not None  # the data layer refuses such rows
    correct = float(answer == truth)
    return Reward(correct, {"correct": correct, "answered": float(answer is not None)})
