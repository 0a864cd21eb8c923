"""Conventions of checkers and interactors, testlib's and Kattis's: the call, and what they say when they end. Pure.

What the exit codes and files of each mean is from testlib.h (`quit`, `quitp`) and from the problem package format
("Output Validators"). Invariants: points are a number from 0 to those of a whole case, or the program has failed; so
has one that says its points twice, because what a candidate printed may be quoted beside them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from executor_service.grading.model import CheckerConvention, Verdict
from executor_service.grading.request import JudgeProgram
from executor_service.grading.rules import PASSED, Judgement
from executor_service.model import Cause, ExecutionResult, FileStatus, Outcome

INPUT, OUTPUT, ANSWER = "input", "output", "answer"
"""Names of files."""
FEEDBACK = "feedback"
MESSAGE = f"{FEEDBACK}/judgemessage.txt"
_SCORE, _MULTIPLIER = f"{FEEDBACK}/score.txt", f"{FEEDBACK}/score_multiplier.txt"
POINTS_CODE = 7
"""Exit code of testlib: right in part."""
_POINTS = re.compile(r"points ([-+.\deE]{1,32})(?:\s|$)")
_SHOWN = 1000
"""Characters of what such a program says that are passed on."""


@dataclass(frozen=True, slots=True)
class Rules:
    """One convention."""

    args: tuple[str, ...]
    names: tuple[str, ...]
    """Files and folders that the program's own may not be called."""
    returned: tuple[str, ...]
    """Files by which it says more than by its exit code. The longest is the last: there may be no room for it."""
    right: int
    wrong: frozenset[int]
    partial: int | None
    """Exit codes."""


RULES = {
    CheckerConvention.TESTLIB: Rules(
        args=(INPUT, OUTPUT, ANSWER),
        names=(INPUT, OUTPUT, ANSWER),
        returned=(),
        right=0,
        # Wrong answer, presentation error, too much output, unexpected end of file.
        wrong=frozenset({1, 2, 4, 8}),
        partial=POINTS_CODE,
    ),
    CheckerConvention.KATTIS: Rules(
        args=(INPUT, ANSWER, f"{FEEDBACK}/"),
        names=(INPUT, ANSWER, FEEDBACK),
        returned=(_SCORE, _MULTIPLIER, MESSAGE),
        right=42,
        wrong=frozenset({43}),
        partial=None,
    ),
}


def accepts(judge: JudgeProgram, code: int) -> bool:
    """Says whether by this exit code the candidate is right, in part at least."""
    rules = RULES[judge.convention]
    return code in (rules.right, rules.partial)


def verdict_of(judge: JudgeProgram, run: ExecutionResult, refusal: str, points: str = "") -> Judgement | None:
    """The verdict that `run` of a checker or interactor has come to; None: it has failed. `refusal`: what is told if it
    only says that the candidate is wrong; `points`: those that it has returned as a function."""
    if run.outcome not in (Outcome.FINISHED, Outcome.NONZERO_EXIT):
        return None
    rules, code = RULES[judge.convention], run.exit_code
    said = (_text_of(run, MESSAGE) or run.stderr.text or run.stdout.text).strip()[:_SHOWN]
    if code in rules.wrong:
        return Judgement(Verdict.WRONG_ANSWER, Cause.POLICY, said or refusal)
    if code == rules.right:
        for name, whole in ((_SCORE, judge.full_points), (_MULTIPLIER, 1.0)):
            if (text := _text_of(run, name)) is not None:
                return _partial(text, whole, said or refusal)
        return PASSED
    if code == rules.partial:
        return _partial(points or _points_of(run), judge.full_points, said or refusal)
    return None


def _points_of(run: ExecutionResult) -> str:
    """The number of the one line that says it; empty: there is none, or there are several."""
    found = [match for line in run.stderr.text.splitlines() if (match := _POINTS.match(line))]
    return found[0][1] if len(found) == 1 and not run.stderr.truncated else ""


def _partial(text: str, whole: float, said: str) -> Judgement | None:
    """For points of a whole case's; None: they are no such number."""
    try:
        score = float(text) / whole
    except ValueError:
        return None
    if not 0 <= score <= 1:
        return None
    if score == 1:
        return PASSED
    return Judgement(Verdict.PARTIAL if score else Verdict.WRONG_ANSWER, Cause.POLICY, said, score=score)


def _text_of(run: ExecutionResult, path: str) -> str | None:
    """Contents of a returned file, empty if they are too large or no text; None: there is none."""
    there = (file for file in run.files if file.path == path and file.status is not FileStatus.MISSING)
    file = next(there, None)
    return None if file is None else file.content.decode("utf-8", "replace")
