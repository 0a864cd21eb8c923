"""`fairbox check-env env=code`: sound problems stay unnamed, and planted defects are found."""

from __future__ import annotations

import ast
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rollout.cli import main
from rollout.data.records import read_records
from rollout.env_check.programs import programs_for
from tests.executor.servers import Server, running

Problem = dict[str, Any]
TWICE = {
    "task_id": "twice",
    "prompt": 'def twice(n):\n    """Two times n."""\n',
    "entry_point": "twice",
    "canonical_solution": "    return n + n\n",
    "test": "def check(candidate):\n    assert candidate(4) == 8\n    assert candidate(-1) == -2\n",
}
SLEEPS = "    import time\n    time.sleep(0 if hasattr(time, 'slept') else 6)\n    time.slept = True\n"
"""Takes six seconds, once, of the ten that there are."""
ECHO = {
    "reward_model": {"ground_truth": json.dumps({"inputs": ["a\n", "b\n"], "outputs": ["A", "B"]})},
    "extra_info": {"question": "Shout a line.", "solution": "print(input().upper())"},
}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running("max_concurrent=4") as started:
        yield started


def with_tests(body: str) -> Problem:
    return {**TWICE, "test": f"def check(candidate):\n{body}"}


def stdio(inputs: list[str], outputs: list[str], solution: str) -> Problem:
    truth = json.dumps({"inputs": inputs, "outputs": outputs})
    return {"reward_model": {"ground_truth": truth}, "extra_info": {"question": "?", "solution": solution}}


def checked(server: Server, folder: Path, problems: list[Problem], *given: str) -> list[dict[str, set[str]]]:
    """For each problem: kinds of its findings -> what they say."""
    data, out = folder / "problems.jsonl", folder / "findings.json"
    data.write_text("".join(json.dumps(problem) + "\n" for problem in problems))
    words = ["check-env", "env=code", f"data={data}", f"executor={server.target}", f"json={out}", "parallel=4", *given]
    code = main(words)
    kinds: list[dict[str, set[str]]] = []
    for each in json.loads(out.read_text()):
        found: dict[str, set[str]] = {}
        for finding in each["findings"]:
            found.setdefault(finding["kind"], set()).add(finding["what"])
        kinds.append(found)
    assert code == any(kinds)
    return kinds


def test_each_planted_defect_is_named(server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    problems: list[Problem] = [
        TWICE,
        ECHO,
        {**TWICE, "canonical_solution": "    return n * n\n"},
        with_tests("    assert candidate(4) is not None\n"),
        with_tests("    try:\n        assert candidate(4) == 8\n    except Exception:\n        pass\n"),
        with_tests("    assert candidate(0) == 0\n"),
        {**TWICE, "canonical_solution": f"{SLEEPS}    return n + n\n"},
        with_tests("    from nowhere import equal\n    assert equal(candidate(4), 8)\n"),
        stdio(["a\n", "b\n"], ["a", "b"], "print(input())"),
        stdio(["1\n", "2\n"], ["YES", "YES"], "print('YES')"),
        stdio(["1\n", "2\n"], ["1", "4"], "print(input())"),
        {key: value for key, value in TWICE.items() if key != "canonical_solution"},
    ]
    found = checked(server, tmp_path, problems, "repeats=2")
    assert [set(kinds) for kinds in found] == [
        set(),
        set(),
        {"solution_fails"},
        {"cheated"},
        {"cheated"},
        {"cheated"},
        {"slow"},
        {"solution_fails"},
        {"cheated"},
        {"cheated"},
        {"solution_fails"},
        set(),
    ]
    assert found[5]["cheated"] >= {"returns-zero is worth 1", "returns-first is worth 1"}
    assert found[8]["cheated"] == {"prints-its-input is worth 1"}
    assert found[9]["cheated"] == {"prints-yes is worth 1"}
    said = capsys.readouterr().out
    assert "\n12 tasks, 9 of them broken\n" in said
    assert "solution_fails: the solution is worth 0" in said
    assert "    print('YES')\n" in said, "the cheat is shown"


def test_a_flaky_test_is_found(server: Server, tmp_path: Path) -> None:
    flaky = with_tests("    import random\n    assert random.random() < 0.5\n    assert candidate(4) == 8\n")
    (found,) = checked(server, tmp_path, [flaky], "repeats=60", "cheats=false")  # alike once in 2**59
    assert set(found) == {"flaky"}


def test_every_cheat_is_a_program_of_its_own() -> None:
    cheats = programs_for(["solve", "Solution"])
    assert len(cheats) >= 30
    assert len({cheat.name for cheat in cheats}) == len({cheat.script for cheat in cheats}) == len(cheats)
    for cheat in cheats:
        ast.parse(cheat.script)
        assert cheat.advice


def _in_first_assert(test: str, change: Callable[[ast.Assert], ast.stmt]) -> str:
    """The test, with the first assertion right in `check` changed."""
    tree = ast.parse(test)
    check = next(each for each in tree.body if isinstance(each, ast.FunctionDef) and each.name == "check")
    number = next(number for number, each in enumerate(check.body) if isinstance(each, ast.Assert))
    old = check.body[number]
    assert isinstance(old, ast.Assert)
    check.body[number] = change(old)
    return ast.unparse(ast.fix_missing_locations(tree))


def _body(test: str, before: str) -> str:
    """The test with statements before those of `check`."""
    tree = ast.parse(test)
    check = next(each for each in tree.body if isinstance(each, ast.FunctionDef) and each.name == "check")
    check.body = [*ast.parse(before).body, *check.body]
    return ast.unparse(ast.fix_missing_locations(tree))


def _swallowed(test: str) -> str:
    tree = ast.parse(test)
    check = next(each for each in tree.body if isinstance(each, ast.FunctionDef) and each.name == "check")
    wrapped = ast.parse("try:\n    pass\nexcept Exception:\n    pass").body[0]
    assert isinstance(wrapped, ast.Try)
    wrapped.body, check.body = check.body, [wrapped]
    return ast.unparse(ast.fix_missing_locations(tree))


def _only(statement: str) -> Callable[[Problem], Problem]:
    return lambda row: {**row, "test": f"def check(candidate):\n    {statement}\n"}


def _tests(change: Callable[[str], str]) -> Callable[[Problem], Problem]:
    return lambda row: {**row, "test": change(row["test"])}


PLANTED: dict[str, Callable[[Problem], Problem]] = {
    "a solution that raises": lambda row: {**row, "canonical_solution": "    raise ValueError\n"},
    "a solution for another function": lambda row: {**row, "canonical_solution": "    return NotImplemented\n"},
    "an assertion turned round": _tests(
        lambda test: _in_first_assert(test, lambda old: ast.Assert(ast.UnaryOp(ast.Not(), old.test)))
    ),
    "no assertion": _only("pass"),
    "an answer that is only there": _only("assert candidate is not None"),
    "an answer that is compared with itself": _only("answer = candidate; assert answer == candidate"),
    "failures that are swallowed": _tests(_swallowed),
    "an end before the assertions": _tests(lambda test: _body(test, "if candidate:\n    return")),
    "a module that is not there": _tests(lambda test: _body(test, "import no_such_module")),
    "a host that is wanted": _tests(
        lambda test: _body(test, "import urllib.request\nurllib.request.urlopen('http://example.org')")
    ),
    "tests that are no Python": _tests(lambda test: test + "\ndef (:\n"),
    "a coin that is tossed": _tests(lambda test: _body(test, "import random\nassert random.random() < 0.5")),
    "a limit that is nearly met": lambda row: {**row, "canonical_solution": SLEEPS + row["canonical_solution"]},
}


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_of_a_hundred_planted_defects_all_are_found_and_no_sound_problem_is_called_broken(
    server: Server, tmp_path: Path
) -> None:
    folder = Path(os.environ.get("FAIRBOX_DATA") or Path(__file__).parents[4] / "shared" / "data")
    if not (path := folder / "humaneval" / "HumanEval.jsonl.gz").is_file():
        pytest.skip("HumanEval is not here: set FAIRBOX_DATA to a folder with humaneval/HumanEval.jsonl.gz")
    rows = [dict(record) for _, record in read_records(path) if _plain(record)]
    sound = [not kinds for kinds in checked(server, tmp_path, rows)]
    assert len(sound) >= 100
    assert all(sound)
    kinds = list(PLANTED)
    planted = [(kinds[number % len(kinds)], row) for number, row in enumerate(rows[:104])]
    found = checked(server, tmp_path, [PLANTED[kind](row) for kind, row in planted], "repeats=12")
    missed = [(kind, row["task_id"]) for (kind, row), each in zip(planted, found, strict=True) if not each]
    assert not missed


def _plain(row: Any) -> bool:
    """Says whether its test has an assertion that can be turned round."""
    check = next(each for each in ast.parse(row["test"]).body if isinstance(each, ast.FunctionDef))
    return any(isinstance(each, ast.Assert) for each in check.body)
