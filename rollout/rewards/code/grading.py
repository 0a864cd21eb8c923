"""Grades a program at an executor, and makes the reward of what comes back.

Invariants: a case that could not be run, or is broken, is never a zero; what the answer itself makes impossible to run
(no code, text that is no Unicode, more than the server takes) is one.
"""

from __future__ import annotations

import asyncio
import functools
import random
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from executor_service import (
    Case,
    CaseResult,
    Cause,
    Checker,
    ExecutorClient,
    ExecutorError,
    ExecutorUnavailable,
    InputFile,
    InvalidRequest,
    Limits,
    Outcome,
    Overloaded,
    Verdict,
    VerifyResult,
)
from fairbox.errors import ConfigError
from rollout.rewards.base import NotScored, Reward, RewardServices
from rollout.rewards.code.extract import Extracted

T = TypeVar("T")

PATIENCE_S = 120.0
"""Seconds for which a grading is retried if the executor is full or away. Beyond that the run has another problem."""
_TESTLIB = "testlib.h"
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 10.0
_OF_SERVER = tuple(f"{whose}{field}" for whose in ("", "checker.", "interactor.") for field in ("language", "limits"))
"""Fields that a server refuses if it is set up for something else."""


class Unusable(Exception):
    """The answer can't be graded, by its own doing: it is worth nothing."""


@dataclass(frozen=True, slots=True)
class Grading:
    """Settings of grading, whatever the style of the tests."""

    continuous: bool = False
    """The share of the cases that pass; otherwise 1.0 if all do."""
    stop_on_failure: bool = False
    """Cases after the first that does not pass are not run, and count as not passed."""
    max_cases: int = 0
    """Most cases that are run, drawn by `seed`; 0: all."""
    seed: int = 0
    case_parts: bool = False
    """A part `case/ID` for each case."""
    wall_time_s: float = 10.0
    """Wall time of each case, in seconds."""
    time_factor: float = 0.0
    """A problem's own time limit times this is the wall time of its cases; 0: `wall_time_s` is, as for a problem that
    has no limit."""
    checker_time_s: float = 10.0
    """Wall time of a checker of the task, in seconds, for each output that it is given; and of an interactor."""
    memory_mb: int = 0
    """0: the server's limit."""
    output_mb: int = 0
    """Most that is kept of what a program prints, which no expected output may exceed; 0: the server's limit."""
    processes: int = 0
    """0: the server's limit."""
    whole_text: bool = False
    """An answer without a fence is a program itself."""

    def within(self, time_limit_s: float) -> Grading:
        """The same for a problem that has this limit; 0: it has none."""
        limit = time_limit_s * self.time_factor
        return replace(self, wall_time_s=limit) if limit else self


def sampled(cases: Sequence[T], most: int, seed: int) -> tuple[T, ...]:
    """`most` of the cases in their order. The same ones for every answer to a problem, so that a group is compared by
    one measure."""
    if most <= 0 or len(cases) <= most:
        return tuple(cases)
    chosen = random.Random(f"{seed}/{len(cases)}").sample(range(len(cases)), most)  # noqa: S311 - no secret
    return tuple(cases[index] for index in sorted(chosen))


def with_testlib(checker: Checker, path: str) -> Checker:
    """The checker with testlib.h of this path, if it includes that and has none. Raises ConfigError."""
    has_it = any(file.path == _TESTLIB for file in checker.files)
    if not path or has_it or f'"{_TESTLIB}"' not in checker.code:
        return checker
    return replace(checker, files=(*checker.files, _testlib(path)))


@functools.cache
def _testlib(path: str) -> InputFile:
    try:
        return InputFile(_TESTLIB, Path(path).expanduser().read_bytes())
    except OSError as error:
        raise ConfigError(f"testlib is {path!r}: {error.strerror}") from None


async def grade(services: RewardServices, code: str, cases: Sequence[Case], how: Grading, **more: Any) -> VerifyResult:
    """The verdicts. `more` goes to `ExecutorClient.verify`. Raises NotScored, or Unusable if `code` is at fault."""
    if services.executor is None:
        raise NotScored(Cause.INFRA, "there is no executor: the run has none that rewards may use")
    try:
        code.encode()
    except UnicodeEncodeError:
        raise Unusable("the code is not valid Unicode") from None
    limits = Limits(
        how.wall_time_s,
        memory_bytes=how.memory_mb << 20,
        output_bytes=how.output_mb << 20,
        processes=how.processes,
    )
    for name in ("checker", "interactor"):
        if (judge := more.get(name)) is not None:
            more[name] = replace(judge, limits=replace(judge.limits, wall_time_s=how.checker_time_s))
    result = await _patiently(
        services.executor,
        code,
        sampled(cases, how.max_cases, how.seed),
        limits=limits,
        stop_on_failure=how.stop_on_failure,
        request_id=uuid.uuid4().hex,
        **more,
    )
    for case in result.cases:
        if case.cause is not Cause.POLICY:
            cause = result.cause
            said = next(each for each in result.cases if each.cause is cause)
            raise NotScored(cause, f"case {said.case_id}: {said.verdict}: {said.message}")
    return result


async def _patiently(executor: ExecutorClient, code: str, cases: Sequence[Case], **more: Any) -> VerifyResult:
    """Verifies, and again while the executor is full or away.

    Safe to repeat: the request_id is the same, so a server that graded, or still grades, answers from that grading; one
    that is new to it grades afresh, and grading has no effect outside of its sandboxes.
    """
    loop = asyncio.get_running_loop()
    until, pause_s = loop.time() + PATIENCE_S, _FIRST_PAUSE_S
    while True:
        try:
            return await executor.verify(code, cases, **more)
        except InvalidRequest as error:
            raise _refused(error) from None
        except Overloaded as error:
            problem, wait_s = str(error), error.retry_after_s
        except ExecutorUnavailable as error:
            problem, wait_s = str(error), pause_s
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        except ExecutorError as error:
            raise NotScored(Cause.INFRA, str(error)) from None
        wait_s *= random.uniform(1.0, 1.5)  # noqa: S311 - those that were refused together do not come back together
        if loop.time() + wait_s > until:
            raise NotScored(Cause.INFRA, f"{problem}; given up after {PATIENCE_S:g} s") from None
        await asyncio.sleep(wait_s)


def _refused(error: InvalidRequest) -> Exception:
    """The error for whoever is at fault, by the fields that are named: the answer is `code` alone."""
    fields = [each.field for each in error.fields]
    if fields and all(name == "code" for name in fields):
        return Unusable(str(error))
    infra = any(name.startswith(_OF_SERVER) for name in fields)
    return NotScored(Cause.INFRA if infra else Cause.TASK, str(error))


def reward_of(extracted: Extracted, result: VerifyResult | None, how: Grading) -> Reward:
    """Makes the reward. Value: 1.0 if all cases pass, else 0.0; with `continuous` the mean score of the cases, which is
    the share that passes unless a checker gives points. `result` None: there was nothing to grade.

    Parts: `answered` (there was a program), `fenced` (in a closed block), `cases`, and shares of them: `passed`,
    `partial` (right in part), `wrong` (it answered, wrongly), `failed` (it raised, ended or met a limit), `time_limit`,
    and `not_compiled`; `longest_s`, seconds that the longest case took.
    """
    cases = result.cases if result else ()
    number = max(len(cases), 1)

    def share(of: list[bool]) -> float:
        return sum(of) / number

    passed = share([case.passed for case in cases])
    parts = {
        "answered": float(bool(extracted.code)),
        "fenced": float(extracted.fenced),
        "cases": float(len(cases)),
        "passed": passed,
        "partial": share([case.verdict is Verdict.PARTIAL for case in cases]),
        "wrong": share([case.verdict is Verdict.WRONG_ANSWER for case in cases]),
        "failed": share([case.verdict is Verdict.FAILED for case in cases]),
        "time_limit": share([_outcome(case) in (Outcome.TIME_LIMIT, Outcome.CPU_LIMIT) for case in cases]),
        "not_compiled": share([_outcome(case) is Outcome.COMPILE_ERROR for case in cases]),
        "longest_s": max((case.execution.wall_time_s for case in cases if case.execution), default=0.0),
    }
    if how.case_parts:
        parts |= {f"case/{case.case_id}": float(case.passed) for case in cases}
    mean = sum(case.score for case in cases) / number
    return Reward(mean if how.continuous else float(bool(cases) and passed == 1.0), parts)


def _outcome(case: CaseResult) -> Outcome | None:
    return case.execution.outcome if case.execution else None
