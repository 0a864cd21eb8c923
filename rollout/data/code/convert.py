"""Converts programming problems to verl's rows, one at a time. Each row becomes one, or is left out with its reason."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from rollout.data.code.problem import CodeProblem, RowFault, UnusableRow, ask_of, list_of, needs_python, smallest
from rollout.data.code.read import problem_of


@dataclass(frozen=True, slots=True)
class LeftRow:
    """A row that was left out."""

    where: str
    """File and line, or row."""
    uid: str
    """Empty if the row could not be read so far."""
    why: RowFault
    problem: str


@dataclass(slots=True)
class Converted:
    """Counts of what has been converted so far, and what was left out."""

    rows: int = 0
    cut: int = 0
    """Problems of which the largest cases were left out."""
    cases_cut: int = 0
    unchecked: int = 0
    """Problems without a solution of their own, if solutions were to be checked."""
    sources: Counter[str] = field(default_factory=Counter)
    left: list[LeftRow] = field(default_factory=list)

    def leave(self, where: str, problem: CodeProblem | None, error: UnusableRow) -> None:
        """Notes a row that is left out."""
        said = str(error).removeprefix(f"{where}: ")
        self.left.append(LeftRow(where, problem.uid if problem else "", error.fault, said))


def usable_problems(
    records: Iterable[tuple[str, Any]], *, language: str, most_bytes: int, found: Converted
) -> Iterator[CodeProblem]:
    """Problems of rows (where, columns) as they are published; others go to `found.left`. Raises DataError as `records`
    does; no row ends it.

    They can be asked for in `language`. Of a problem whose cases exceed `most_bytes` the largest are left out.
    """
    seen: set[bytes] = set()
    for where, record in records:
        problem: CodeProblem | None = None
        try:
            problem = problem_of(record, where)
            mark = _mark(problem)
            if mark in seen:
                raise UnusableRow(RowFault.TWICE, where, "an earlier row has the same question and tests")
            seen.add(mark)
            if language != "python" and needs_python(problem):
                raise UnusableRow(RowFault.NEEDS_PYTHON, where, f"its tests call Python, and {language} is asked for")
            truth, cut = fit(problem, most_bytes)
        except UnusableRow as error:
            found.leave(where, problem, error)
            continue
        found.cut += bool(cut)
        found.cases_cut += cut
        yield replace(problem, ground_truth=truth)


def verl_rows(problems: Iterable[CodeProblem], *, language: str, found: Converted) -> Iterator[dict[str, Any]]:
    """A row of verl's for each problem, counted in `found`. `prompt` asks for a program in `language`."""
    for problem in problems:
        yield _verl_row(problem, found.rows, language)
        found.sources[problem.data_source] += 1
        found.rows += 1


def _mark(problem: CodeProblem) -> bytes:
    """The same for the same question and tests. Raises UnusableRow for what no file of rows can hold."""
    try:
        problem.solution.encode()
        return hashlib.sha256(f"{problem.question}\0{problem.ground_truth}\0{problem.recipe}".encode()).digest()
    except UnicodeEncodeError:
        raise UnusableRow(RowFault.BAD_ROW, problem.where, "question or solution is not valid Unicode") from None


def fit(problem: CodeProblem, most: int) -> tuple[str, int]:
    """The ground truth without its largest cases, and how many those are. Raises UnusableRow if none is left."""
    if len(problem.ground_truth) <= most:
        return problem.ground_truth, 0
    truth = json.loads(problem.ground_truth)
    inputs, outputs = (list_of(truth.get(name)) if isinstance(truth, dict) else [] for name in ("inputs", "outputs"))
    if not inputs or len(inputs) != len(outputs):
        raise UnusableRow(
            RowFault.TOO_LARGE, problem.where, f"its tests have {len(problem.ground_truth)} bytes, and can't be cut"
        )
    pairs = list(zip(inputs, outputs, strict=True))
    sizes = [len(json.dumps(pair)) for pair in pairs]
    kept = smallest(sizes, most - (len(problem.ground_truth) - sum(sizes)))
    if not kept:
        raise UnusableRow(RowFault.TOO_LARGE, problem.where, f"each of its tests has more than {most} bytes")
    cut = {"inputs": [pairs[index][0] for index in kept], "outputs": [pairs[index][1] for index in kept]}
    return json.dumps(truth | cut), len(pairs) - len(kept)


def _verl_row(problem: CodeProblem, index: int, language: str) -> dict[str, Any]:
    return {
        "data_source": problem.data_source,
        "prompt": [{"role": "user", "content": f"{problem.question.strip()}\n\n{ask_of(problem, language)}"}],
        "ability": "code",
        "reward_model": {"style": "rule", "ground_truth": problem.ground_truth},
        "extra_info": {
            "index": index,
            "uid": problem.uid,
            "question": problem.question,
            "solution": problem.solution,
        },
    }
