"""Rewards for programs, graded by an executor: `code_stdio`, `code_function`, `code_asserts`, `code_pytest`,
`code_tests`, `humaneval`.

The grading itself is the executor's (docs/how-to/grading.md): the program runs in a sandbox, and what decides runs
elsewhere.
"""

from rollout.rewards.code.extract import Extracted, extract_code
from rollout.rewards.code.functions import (
    code_asserts,
    code_function,
    code_pytest,
    code_stdio,
    code_tests,
    humaneval,
)

__all__ = [
    "Extracted",
    "code_asserts",
    "code_function",
    "code_pytest",
    "code_stdio",
    "code_tests",
    "extract_code",
    "humaneval",
]
