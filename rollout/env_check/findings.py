"""Findings: from what a check of a task has seen to what is wrong with it. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from rollout.env_check.cheats import Cheat
from rollout.envs.checker import Grade


class FindingKind(StrEnum):
    """Defects of a task."""

    SOLUTION_FAILS = "solution_fails"
    NOTHING_PASSES = "nothing_passes"
    FLAKY = "flaky"
    UNBELIEVABLE = "unbelievable"
    CHEATED = "cheated"
    TESTS_IN_REACH = "tests_in_reach"
    LATER_HISTORY = "later_history"
    SLOW = "slow"
    NEEDS_NETWORK = "needs_network"
    LACKS_PROGRAM = "lacks_program"
    NOT_CHECKED = "not_checked"


ADVICE: Mapping[FindingKind, str] = {
    FindingKind.SOLUTION_FAILS: "mend the solution, the tests or the image: a right answer would score 0",
    FindingKind.NOTHING_PASSES: "test what the agent has to change: doing nothing scores",
    FindingKind.FLAKY: "take clock, order, random numbers and races out of the tests: equal answers score differently",
    FindingKind.UNBELIEVABLE: "the runner reports tests otherwise than they end; look at test_cmd and the image",
    FindingKind.TESTS_IN_REACH: "delete these files from the image: an agent can read tests or solution",
    FindingKind.LATER_HISTORY: "make the image from a clone without later commits: the solution can be read there",
    FindingKind.SLOW: "give the tests more time, or less to do: on a busy machine they are cut off",
    FindingKind.NEEDS_NETWORK: "put what is downloaded into the image: there is no network",
    FindingKind.LACKS_PROGRAM: "put it into the image",
    FindingKind.NOT_CHECKED: "",
}
_SLOW_SHARE = 0.5
"""Share of the tests' time from which they are called slow."""
_NETWORK = re.compile(
    r"Temporary failure in name resolution|Could not resolve|Name or service not known|Network is unreachable"
    r"|Failed to establish a new connection|Temporary failure resolving"
)
_LACKING = re.compile(r"No module named '?([\w.]+)|(?:^|: )([\w.+-]+): (?:command )?not found", re.MULTILINE)
_MOST_FAILED = 5
"""Names of tests that are printed."""
_Z = 1.96
"""Standard deviations of a 95 % interval."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One defect."""

    kind: FindingKind
    what: str
    advice: str
    said: str = ""
    """End of what the tests printed, where that helps."""


@dataclass(frozen=True, slots=True)
class Seen:
    """Everything that a check of a task has seen."""

    name: str
    test_s: float = 0.0
    """Seconds that the tests may take."""
    nothing: Sequence[Grade] = ()
    solution: Sequence[Grade] = ()
    """Empty: the task has none."""
    cheats: Sequence[tuple[Cheat, Grade]] = ()
    in_reach: Sequence[str] = ()
    """Files of tests or solution that an agent finds, and where."""
    later_commits: int = 0
    problem: str = ""
    """Reason why it could not be checked."""


@dataclass(frozen=True, slots=True)
class TaskReport:
    """A task, and what is wrong with it."""

    name: str
    nothing: float
    solution: float | None
    """None: the task has none."""
    findings: tuple[Finding, ...] = field(default=())

    @property
    def sound(self) -> bool:
        """True if nothing is wrong with it."""
        return not self.findings

    def tree(self) -> dict[str, Any]:
        """As JSON has it."""
        findings = [
            {"kind": each.kind, "what": each.what, "advice": each.advice, "said": each.said} for each in self.findings
        ]
        return {"name": self.name, "nothing": self.nothing, "solution": self.solution, "findings": findings}

    def __str__(self) -> str:
        solution = "no solution" if self.solution is None else f"solution {self.solution:g}"
        lines = [f"{self.name}: {solution}, nothing {self.nothing:g}{'' if self.sound else ': BROKEN'}"]
        for each in self.findings:
            lines.append(f"  {each.kind}: {each.what}{f' ({each.advice})' if each.advice else ''}")
            lines += [f"    {line}" for line in each.said.splitlines()]
        return "\n".join(lines)


def report_of(seen: Seen) -> TaskReport:
    """Says what is wrong with a task."""
    if seen.problem:
        return TaskReport(seen.name, 0.0, None, (Finding(FindingKind.NOT_CHECKED, seen.problem, ""),))
    solution = min(each.reward for each in seen.solution) if seen.solution else None
    return TaskReport(seen.name, max(each.reward for each in seen.nothing), solution, tuple(_findings(seen)))


def _findings(seen: Seen) -> Iterator[Finding]:
    worst = min(seen.solution, key=lambda grade: grade.reward, default=None)
    best = max(seen.nothing, key=lambda grade: grade.reward)
    flaky = [*_flaky("solution", seen.solution), *_flaky("nothing", seen.nothing)]
    yield from flaky
    if worst is not None and worst.reward < 1 and not _flaky("solution", seen.solution):
        yield _found(FindingKind.SOLUTION_FAILS, f"the solution is worth {worst.reward:g}{_failed(worst)}", worst.said)
        yield from _lacking(worst)
    if best.reward > 0 and not _flaky("nothing", seen.nothing):
        yield _found(FindingKind.NOTHING_PASSES, f"nothing is worth {best.reward:g}", best.said)
    if not all(grade.believed for grade in (*seen.nothing, *seen.solution)):
        yield _found(FindingKind.UNBELIEVABLE, "the tests' own report can't be trusted", best.said)
    for cheat, grade in seen.cheats:
        if grade.reward > max(0.0, best.reward):
            yield Finding(FindingKind.CHEATED, f"{cheat.name} is worth {grade.reward:g}", cheat.advice, cheat.script)
    for where in seen.in_reach:
        yield _found(FindingKind.TESTS_IN_REACH, where)
    if seen.later_commits:
        yield _found(FindingKind.LATER_HISTORY, f"the image has {seen.later_commits} commits that HEAD does not")
    longest = max(grade.test_s for grade in (*seen.nothing, *seen.solution))
    if seen.test_s and longest > _SLOW_SHARE * seen.test_s:
        yield _found(FindingKind.SLOW, f"the tests take {longest:.1f} s, of {seen.test_s:g} that they may")


def _flaky(what: str, grades: Sequence[Grade]) -> list[Finding]:
    """A verdict that is not the same each time: the rate of the rarer one, with its interval."""
    if len({grade.reward for grade in grades}) < 2:
        return []
    passed = sum(grade.reward >= 1 for grade in grades)
    rare = min(passed, len(grades) - passed) or 1
    low, high = wilson(rare, len(grades))
    worst = min(grades, key=lambda grade: grade.reward)
    text = f"{what} differs in {rare} of {len(grades)} runs ({low:.0%} to {high:.0%}){_failed(worst)}"
    return [_found(FindingKind.FLAKY, text, worst.said)]


def wilson(hits: int, of: int) -> tuple[float, float]:
    """The 95 % interval of a share (Wilson 1927)."""
    share, square = hits / of, _Z * _Z / of
    middle = (share + square / 2) / (1 + square)
    half = _Z * math.sqrt(share * (1 - share) / of + square / (4 * of)) / (1 + square)
    return max(0.0, middle - half), min(1.0, middle + half)


def _lacking(grade: Grade) -> Iterator[Finding]:
    if _NETWORK.search(grade.said):
        yield _found(FindingKind.NEEDS_NETWORK, "something of it asks for a host")
    names = dict.fromkeys(module or program for module, program in _LACKING.findall(grade.said))
    for name in list(names)[:_MOST_FAILED]:
        yield _found(FindingKind.LACKS_PROGRAM, f"there is no {name}")


def _failed(grade: Grade) -> str:
    if not grade.failed:
        return ""
    more = len(grade.failed) - _MOST_FAILED
    return f"; failed: {', '.join(grade.failed[:_MOST_FAILED])}{f' and {more} more' if more > 0 else ''}"


def _found(kind: FindingKind, what: str, said: str = "") -> Finding:
    return Finding(kind, what, ADVICE[kind], said)
