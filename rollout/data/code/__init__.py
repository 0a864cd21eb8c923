"""Programming problems, read from rows as they are published, and made rows that every trainer reads."""

from rollout.data.code.convert import Converted, usable_problems, verl_rows
from rollout.data.code.problem import CodeProblem, RowFault, UnusableRow, ask_of, needs_python
from rollout.data.code.read import problem_of, read_code_problems

__all__ = [
    "CodeProblem",
    "Converted",
    "RowFault",
    "UnusableRow",
    "ask_of",
    "needs_python",
    "problem_of",
    "read_code_problems",
    "usable_problems",
    "verl_rows",
]
