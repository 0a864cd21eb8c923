"""Comparison of an answer with what was expected: in a sandbox where that is too much for a server.

There a program of ours does it, which is this file and those that it imports; it reads what the candidate made and runs
nothing of it. Invariants: a server parses and compares at most `MOST_HERE` bytes; a right answer whose text is the
expected one is accepted at sight, whatever its size; `LIMITS` suffice for all that a task can expect, so an answer that
they do not suffice for is the candidate's doing.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from executor_service.grading.model import Comparison, Tolerance, Verdict
from executor_service.grading.rules import PASSED, Judgement, judge_text, judge_value, short
from executor_service.model import Cause, ExecutionResult, InputFile, Limits, Outcome, RunRequest
from fairbox.bounded_json import loads

MOST_HERE = 64 << 10
"""Bytes of both together: up to 50 ms of a thread, and no step of it that others would wait for."""
LIMITS = Limits(
    wall_time_s=300.0,
    cpu_time_s=120.0,
    memory_bytes=2 << 30,
    processes=4,
    open_files=64,
    output_bytes=64 << 10,
    file_bytes=64 << 20,
    disk_bytes=64 << 20,
    return_bytes=0,
    compile_time_s=1.0,
)
"""Limits of one comparison. The largest values take 15 s of CPU time and less than 1 GiB."""
_EXPECTED, _ACTUAL = "expected", "actual"
_CODE = b"from executor_service.grading.apart import main\nmain()\n"
_SOURCES = (
    *("fairbox/bounded_json", "executor_service/model", "executor_service/guest/serve/values"),
    *(f"executor_service/grading/{name}" for name in ("apart", "comparison", "model", "rules", "values")),
)
_MOST_SPACE = 1 << 10
"""White space behind one of two texts that are the same otherwise."""


@dataclass(frozen=True, slots=True)
class ComparedAnswer:
    """A candidate's output or return value, and the expected one."""

    expected: bytes
    """Expected output, or text of a value that was found good."""
    actual: bytes
    """Printed output; if `is_value`, what the function's process sent."""
    comparison: Comparison
    tolerance: Tolerance
    is_value: bool = False
    tuples_are_lists: bool = False
    alternatives: tuple[bytes, ...] = ()
    """Other outputs that are right."""

    @property
    def size(self) -> int:
        """Bytes to be compared."""
        return sum(map(len, self._right)) + len(self.actual)

    @property
    def _right(self) -> tuple[bytes, ...]:
        return (self.expected, *self.alternatives)

    def at_sight(self) -> Judgement | None:
        """For an answer whose text is the expected one; None for others. Nothing is copied."""
        if self.is_value:
            # [value, changed arguments, printed text]
            begins, ends = b'["l", [', 7 + len(self.expected)
            same = self.actual.startswith(self.expected, 7) and self.actual.startswith(begins)
            if not same or self.actual[ends : ends + 1] != b",":
                return None
            return Judgement(Verdict.PASSED, Cause.POLICY, actual=short(self.expected))
        if self.comparison is Comparison.EXACT:
            return self.judge()
        return PASSED if any(_same_but_for_space(each, self.actual) for each in self._right) else None

    def judge(self) -> Judgement:
        """Compares: takes time that grows with `size`."""
        if not self.is_value:
            found = [judge_text(each, self.actual, self.comparison, self.tolerance) for each in self._right]
            return PASSED if PASSED in found else found[0]
        return judge_value(
            self.actual,
            json.loads(self.expected),
            self.comparison,
            tuples_are_lists=self.tuples_are_lists,
            tolerance=self.tolerance,
        )

    def program(self, tenant: str) -> RunRequest:
        """The run that compares: `finding_of` reads its result."""
        tolerance = (self.tolerance.absolute, self.tolerance.relative)
        how = json.dumps([self.comparison, tolerance, self.is_value, self.tuples_are_lists, len(self.alternatives)])
        right = (InputFile(f"{_EXPECTED}{index}", text) for index, text in enumerate(self._right))
        files = (*_sources(), *right, InputFile(_ACTUAL, self.actual))
        return RunRequest(_CODE, "python", LIMITS, args=(how,), files=files, tenant=tenant)


def _same_but_for_space(expected: bytes, actual: bytes) -> bool:
    """Says whether one of two texts is the other with a little white space behind it."""
    less, more = sorted((expected, actual), key=len)
    return len(more) - len(less) <= _MOST_SPACE and more.startswith(less) and not more[len(less) :].strip()


@cache
def _sources() -> tuple[InputFile, ...]:
    root = Path(__file__).parents[2]
    return tuple(InputFile(f"{name}.py", (root / f"{name}.py").read_bytes()) for name in _SOURCES)


def main() -> None:
    """Runs as `ComparedAnswer.program`: compares, and prints the finding as JSON."""
    comparison, tolerance, is_value, tuples_are_lists, more = json.loads(sys.argv[1])
    expected, *others = (Path(f"{_EXPECTED}{index}").read_bytes() for index in range(more + 1))
    found = ComparedAnswer(
        expected,
        Path(_ACTUAL).read_bytes(),
        Comparison(comparison),
        Tolerance(*tolerance),
        is_value,
        tuples_are_lists,
        tuple(others),
    ).judge()
    json.dump([found.verdict, found.message, (found.actual or b"").decode()], sys.stdout)


def finding_of(run: ExecutionResult) -> Judgement:
    """Returns what a run of `ComparedAnswer.program` has found."""
    if run.cause is Cause.INFRA:
        return Judgement(Verdict.ERROR, Cause.INFRA, f"The answer could not be compared: {run.message}")
    if run.outcome is not Outcome.FINISHED:
        why = run.message or run.stderr.text.strip().rpartition("\n")[2][:1000]
        return Judgement(Verdict.WRONG_ANSWER, Cause.POLICY, f"The answer is too much to be compared: {why}")
    verdict, message, actual = loads(run.stdout.data, depth=1, left=[4])
    return Judgement(Verdict(verdict), Cause.POLICY, message, actual.encode() or None)
