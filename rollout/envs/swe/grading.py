"""Grades what an agent left: takes its difference, applies it in the task's own image, runs the tests, reads reports.

The caller says how a program is run. Invariants: a grading raises RowMismatch only for what was so before any agent;
the numbers are finite and have always the same names; whatever a sandbox in which an agent's code ran returns,
reading it raises nothing, and earns at worst 0.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from executor_service import ExecutionResult, FileStatus, Outcome
from fairbox.errors import FairboxError
from rollout.envs.swe.canary import Canary, new_canary
from rollout.envs.swe.programs import (
    CHANGE,
    DROPPED,
    HEAD,
    MAX_UNCLEAN_BYTES,
    OUTPUT,
    STATE,
    UNCLEAN,
    GradingProgram,
    ImageBase,
    RepositoryTests,
    look_at,
    run_tests,
    take_change,
)
from rollout.envs.swe.reports import read_report
from rollout.envs.swe.rows import MAX_PATCH_BYTES

RunProgram = Callable[[GradingProgram], Awaitable[ExecutionResult]]
"""Runs a program; the result's cause is not INFRA."""
_TREE = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_MOST_COUNT = 1_000_000
_SAID_CHARS = 2000


class RowMismatch(FairboxError):
    """A row and its image don't fit: no agent could be graded. The text says why."""


@dataclass(frozen=True, slots=True)
class SuiteGrading:
    """The numbers of a trajectory, and what people want to know beside them."""

    numbers: dict[str, float]
    failed: tuple[str, ...] = ()
    """Tests of the row that did not pass."""
    said: str = ""
    """End of what the tests printed, or why none ran."""
    test_s: float = 0.0
    """Seconds that the tests took."""


@dataclass(frozen=True, slots=True)
class AgentChange:
    """The difference between an untouched image and what an agent left."""

    patch: bytes = b""
    problem: str = ""
    """Name of the number that says why there is none: `no_diff` or `too_large`; empty: there is one."""


async def look(run: RunProgram, tests: RepositoryTests, image: str) -> ImageBase:
    """The repository of an untouched image. Raises RowMismatch."""
    result = await run(look_at(tests, image))
    state = _text(result, STATE)
    where = f"image {image}, {tests.working_dir}"
    if result.outcome is not Outcome.FINISHED or state != "ready":
        why = state or f"{result.outcome}: {result.message or result.stderr.text[-200:].strip()}"
        raise RowMismatch(f"{where}: the repository can't be used: {why[:700]}")
    head, unclean = _text(result, HEAD), _content(result, UNCLEAN)
    if unclean is None or len(unclean) > MAX_UNCLEAN_BYTES:
        raise RowMismatch(
            f"{where}: differs from its commit by more than {MAX_UNCLEAN_BYTES} bytes, all that is allowed"
        )
    if not _TREE.fullmatch(head):
        raise RowMismatch(f"{where}: git names the commit's tree {head[:80]!r}")
    return ImageBase(head, unclean)


async def take(run: RunProgram, tests: RepositoryTests, base: ImageBase, image: str) -> AgentChange:
    """The difference that an agent claims, of the image of what it left."""
    result = await run(take_change(tests, base, image))
    patch = _content(result, CHANGE)
    if result.outcome is not Outcome.FINISHED or _text(result, STATE) != "ready" or patch is None:
        return AgentChange(problem="no_diff")
    return AgentChange(problem="too_large") if len(patch) > MAX_PATCH_BYTES else AgentChange(patch)


async def grade(
    run: RunProgram, tests: RepositoryTests, base: ImageBase, image: str, patch: bytes, **more: bool
) -> SuiteGrading:
    """Runs the tests with a difference; `more` as for `run_tests`."""
    canary = new_canary(tests.plan.kind, tests.plan.files[0])
    result = await run(run_tests(tests, base, image, patch, canary, **more))
    return await asyncio.to_thread(grading_of, result, tests, canary)  # seconds, if the output is hostile


def grading_of(result: ExecutionResult, tests: RepositoryTests, canary: Canary) -> SuiteGrading:
    """The grading of a run of the tests, however it ended."""
    state, dropped = _text(result, STATE), _count(_text(result, DROPPED))
    if result.outcome in (Outcome.TIME_LIMIT, Outcome.CPU_LIMIT):
        return nothing("timed_out", applied=float(state == "ran"), dropped_files=dropped)
    if state == "no-change":
        return nothing("no_change", dropped_files=dropped)
    if state != "ran":
        return nothing(said=state or f"{result.outcome}: {result.message}", dropped_files=dropped)
    output = (_content(result, OUTPUT) or b"").decode("utf-8", "replace")
    report = read_report(tests.plan.kind, output, {*tests.fail_to_pass, *tests.pass_to_pass, canary.good, canary.bad})
    failed = tuple(name for name in (*tests.fail_to_pass, *tests.pass_to_pass) if not report.get(name))
    believed = canary.confirms(report)
    numbers = _numbers() | {
        "reward": float(believed and not failed),
        "fail_to_pass": _share(report, tests.fail_to_pass),
        "pass_to_pass": _share(report, tests.pass_to_pass),
        "applied": 1.0,
        "canary": float(believed),
        "dropped_files": dropped,
    }
    return SuiteGrading(numbers, failed, output[-_SAID_CHARS:].strip(), result.wall_time_s)


def nothing(*ones: str, said: str = "", **numbers: float) -> SuiteGrading:
    """The grading of a trajectory whose tests told nothing; the numbers `ones` are 1, and say why."""
    return SuiteGrading(_numbers() | dict.fromkeys(ones, 1.0) | numbers, said=said[:_SAID_CHARS])


def _numbers() -> dict[str, float]:
    names = (
        *("reward", "fail_to_pass", "pass_to_pass", "applied", "canary"),
        *("no_change", "no_diff", "too_large", "timed_out", "dropped_files"),
    )
    return dict.fromkeys(names, 0.0)


def _share(report: dict[str, bool], names: Sequence[str]) -> float:
    return sum(report.get(name, False) for name in names) / len(names) if names else 1.0


def _count(text: str) -> float:
    return float(min(int(text), _MOST_COUNT)) if re.fullmatch(r"[0-9]{1,9}", text) else 0.0


def _content(result: ExecutionResult, path: str) -> bytes | None:
    """Bytes of a returned file; None if it is missing, or too large."""
    found = (file for file in result.files if file.path == path and file.status is FileStatus.RETURNED)
    return next((file.content for file in found), None)


def _text(result: ExecutionResult, path: str) -> str:
    return (_content(result, path) or b"")[:1000].decode("utf-8", "replace")
