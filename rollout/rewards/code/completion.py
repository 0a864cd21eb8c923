"""HumanEval: a problem is the beginning of a program, and an answer goes on with it or is a program itself. Pure.

What the beginning defines beside the function (helpers, imports) is the task's: the test uses its own copy. A candidate
that defines `poly` or `encode_shift` anew does not decide what `assert poly(xs, candidate(xs)) == 0` means.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from executor_service import AssertCase
from rollout.rewards.code.source import after_future, defines, parsed
from rollout.rewards.code.truth import unusable

__all__ = ["Completion", "completion_of"]

_MARGIN = re.compile(r"\n(?=[^\s#)\]}])")
"""Where a completion of a function ends: something starts at the margin again."""


@dataclass(frozen=True, slots=True)
class Completion:
    """A problem."""

    prompt: str
    """Ends with the function's signature and docstring."""
    test: str
    """Defines `check(candidate)`."""
    entry_point: str

    def program(self, answer: str) -> str:
        """The candidate: `answer` where it has the function, with what the prompt defines beside it; else the prompt
        with `answer` as the function's body, as far as it is one."""
        if defines(answer, self.entry_point):
            return after_future(self._beside(), answer)
        body = _MARGIN.split("\n" + answer.strip("\n"), maxsplit=1)
        if not body[0].strip():  # it starts at the margin itself: a body that was not indented
            body = ["\n" + "\n".join(f"    {line}" if line.strip() else "" for line in answer.strip("\n").split("\n"))]
        return self.prompt.rstrip("\n") + body[0] + "\n"

    @property
    def setup_code(self) -> str:
        """What the test needs: the task's own helpers, and the test."""
        return f"{self._beside()}\n{self.test}\n"

    @property
    def case(self) -> AssertCase:
        # By name: a function may be called as a built-in one is.
        source = f"from solution import {self.entry_point} as _candidate\ncheck(_candidate)"
        return AssertCase(source, self.entry_point)

    def _beside(self) -> str:
        """Source of what the prompt defines beside the function."""
        tree = parsed(self.prompt.rstrip("\n") + "\n    pass\n")
        if tree is None:
            raise unusable(f"the prompt of {self.entry_point} is no beginning of a program")
        rest = [node for node in tree.body if not (isinstance(node, _FUNCTIONS) and node.name == self.entry_point)]
        return ast.unparse(ast.Module(rest, []))


_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def completion_of(document: Any) -> Completion:
    """Of a mapping with `prompt`, `test` and `entry_point`. NotScored (TASK) where one is missing."""
    if not isinstance(document, Mapping):
        raise unusable("must be an object with prompt, test and entry_point")
    texts = []
    for name in ("prompt", "test", "entry_point"):
        value = document.get(name)
        if not isinstance(value, str) or not value.strip():
            raise unusable(f"{name} is {value!r:.40}, must be a text that is not empty")
        texts.append(value)
    if not texts[2].isidentifier():
        raise unusable(f"entry_point is {texts[2]!r}, must be the name of a function")
    return Completion(*texts)
