"""Problems that a small model can't solve without a tool: products of two digits each, modulo a prime. Pure.

The answer is a number below 97, so a guess is right once in a hundred times, and no model of a few million weights
learns to multiply while it learns to call the tool. Longer numbers would only be more to copy without a mistake.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

MODULUS = 97
"""The largest prime of two digits: every remainder is about as likely as any other."""
_LEAST, _MOST = 10, 96
"""Factors below the modulus: no product is a multiple of it, so 0 is no better a guess than others."""
_HELD_OUT = 10
"""One of so many problems is never trained on, neither in the warm-up nor by reinforcement learning."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem. Both factors have two digits."""

    left: int
    right: int

    @property
    def question(self) -> str:
        """The user's question."""
        return f"{self.left} * {self.right} % {MODULUS} = ?"

    @property
    def code(self) -> str:
        """The program that prints the answer."""
        return f"print({self.left} * {self.right} % {MODULUS})"

    @property
    def answer(self) -> str:
        """The program's output, without the newline."""
        return str(self.left * self.right % MODULUS)


def held_out(problem: Problem) -> bool:
    """Says whether the problem is for evaluations only."""
    return (problem.left + problem.right) % _HELD_OUT == 0


def draw(count: int, generator: random.Random, *, held: bool = False) -> list[Problem]:
    """`count` problems, in an order of the generator's; `held` says of which part. The same one may come twice:
    there are 7,569."""
    found: list[Problem] = []
    while len(found) < count:
        problem = Problem(generator.randint(_LEAST, _MOST), generator.randint(_LEAST, _MOST))
        if held_out(problem) == held:
            found.append(problem)
    return found


def row_of(problem: Problem) -> dict[str, Any]:
    """The problem as a row of verl's, for `env=gsm8k env_config.prompt=data`."""
    return {
        "data_source": "fairbox/practice",
        "prompt": [{"role": "user", "content": problem.question}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": problem.answer},
    }
