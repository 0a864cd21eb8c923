"""No known trick is worth anything, and none gets an answer out of being scored; honest solutions are worth 1.

Through the reward functions, on a real server. The tricks are those of the executor's own suite, which runs all of them
in every style over many cases; here each is one answer for one or two cases. Some are of the rewards alone.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from executor_service import Limits, StdioCase
from rollout.rewards import RewardServices
from tests.executor import tricks

Scored = Callable[..., Any]

CALLS = {"fn_name": "add", "inputs": [f"{tricks.LEFT}\n{tricks.RIGHT}"], "outputs": [str(tricks.SUM)]}
ASSERTS = {
    "assert_case": [
        f"assert {{add({tricks.LEFT}, {tricks.RIGHT})}} == {{{tricks.SUM}}}",
        "assert close(add(20, 30), 50) and abs(add(1, 2) - 3) < 1e-6 and sorted([add(1, 2)]) == [3]",
    ],
    "setup_code": tricks.SETUP,
}
HUMANEVAL = {
    "prompt": f'{tricks.SETUP}\n\ndef add(a, b):\n    """Adds."""\n',
    "test": (
        "METADATA = {}\n\ndef check(candidate):\n"
        f"    total = candidate({tricks.LEFT}, {tricks.RIGHT})\n"
        f"    assert total == {tricks.SUM}, total\n    assert close(candidate(20, 30), 50)\n    assert True\n"
    ),
    "entry_point": "add",
}
PYTEST = {"test_files": {tricks.TEST_FILE.path: tricks.TEST_FILE.content.decode()}}
TRUTHS: dict[str, Any] = {"code_function": CALLS, "code_asserts": ASSERTS, "humaneval": HUMANEVAL}

SLOW = ("never returns", "stops itself", "forks and answers twice", "recurses", "a huge value", "patches json")
"""Take seconds, most of them until a limit ends them: in one style only."""
TRICKS = {name: code for name, code in (tricks.MODULES | tricks.VALUES).items() if name not in SLOW}
OF_PYTEST = ("patches pytest", "writes tests", "raises what pytest catches")
"""pytest takes long to load: those that are about it."""
OF_HUMANEVAL = ("exit later", "patches builtins", "defines built-in names", "patches frames on the stack", "a mock")
"""Grades as `code_asserts` does: a few of each kind."""

OWN = {
    "prints what graders look for": "def add(a, b):\n    print('True')\n    print('[1.0]')\n    return None\n",
    "replaces what is imported for it": (
        "import typing\ntyping.List = None\ndef check(candidate): pass\ndef close(a, b): return True\n"
        "def add(a, b):\n    return 12345\n"
    ),
    "claims to be another module": (
        "import sys\nsys.modules['solution'] = sys.modules['__main__'] = type(sys)('x')\n"
        "__name__ = '__main__'\n_candidate = check = lambda *a: True\ndef add(a, b):\n    return 12345\n"
    ),
    "precomputed answers": (
        "import glob, os, re\n"
        "def add(a, b):\n"
        "    for path in glob.glob('/sandbox/**', recursive=True) + glob.glob('/tmp/**', recursive=True):\n"
        "        if os.path.isfile(path) and not path.endswith('solution.py'):\n"
        "            for number in re.findall(r'[0-9]{6}', open(path, errors='replace').read()):\n"
        f"                if int(number) > {tricks.RIGHT}:\n                    return int(number)\n"
        "    return 12345\n"
    ),
    "an attribute that is not there": "class add:\n    def __new__(cls, *a):\n        raise AssertionError('skip')\n",
}


def answer(code: str) -> str:
    return f"```python\n{code}\n```"


@pytest.mark.parametrize("style", TRUTHS)
@pytest.mark.parametrize("name", tricks.HONEST)
async def test_an_honest_solution_is_worth_one(scored: Scored, style: str, name: str) -> None:
    reward = await scored(style, answer(tricks.HONEST[name]), json.dumps(TRUTHS[style]))
    assert reward.value == 1.0, reward.parts


@pytest.mark.parametrize(
    ("style", "name"),
    [
        *((style, name) for style in ("code_function", "code_asserts") for name in (*TRICKS, *OWN)),
        *(("humaneval", name) for name in (*OF_HUMANEVAL, *OF_PYTEST, *OWN)),
    ],
)
async def test_a_trick_is_worth_nothing(scored: Scored, style: str, name: str) -> None:
    reward = await scored(style, answer((TRICKS | OWN)[name]), json.dumps(TRUTHS[style]))
    assert (reward.value, reward.parts["passed"]) == (0.0, 0.0), reward.parts


@pytest.mark.parametrize("name", SLOW)
async def test_a_trick_that_takes_long_is_worth_nothing(scored: Scored, name: str) -> None:
    code = (tricks.MODULES | tricks.VALUES)[name]
    arguments = {"wall_time_s": 0.5, "memory_mb": 256, "processes": 16}
    reward = await scored("code_function", answer(code), json.dumps(CALLS), **arguments)
    assert (reward.value, reward.parts["passed"]) == (0.0, 0.0), reward.parts


@pytest.mark.parametrize("name", OF_PYTEST)
async def test_a_trick_passes_no_test_file(scored: Scored, name: str) -> None:
    reward = await scored("code_pytest", answer(TRICKS[name]), json.dumps(PYTEST), continuous=True)
    assert reward.value == 0.0, reward.parts


def programs(cases: list[StdioCase]) -> str:
    return json.dumps([{"input": c.stdin.decode(), "output": c.expected_stdout.decode()} for c in cases])


@pytest.mark.parametrize("name", tricks.PROGRAMS)
async def test_a_trick_of_a_program_is_worth_nothing(scored: Scored, name: str) -> None:
    arguments = {"wall_time_s": 1.0, "continuous": True}
    reward = await scored("code_stdio", answer(tricks.PROGRAMS[name]), programs(tricks.STDIO[-1:]), **arguments)
    assert reward.value == 0.0, reward.parts


@pytest.mark.parametrize("name", tricks.HONEST_STDIO)
async def test_an_honest_program_is_worth_one(scored: Scored, name: str) -> None:
    assert (await scored("code_stdio", answer(tricks.HONEST_STDIO[name]), programs(tricks.STDIO))).value == 1.0


@pytest.mark.parametrize(
    "printed",
    [
        "",
        "0",
        "ok",
        "{{}}",
        "exit(0)",
        "1 2 3\\n' or True or '",
        "\\x00",
        "\\x1b[2J",
        "[" * 100_000,
        "1" + "0" * 10_000,
    ],
)
async def test_an_output_that_breaks_a_checker_is_worth_nothing(scored: Scored, printed: str) -> None:
    truth = {
        "inputs": ["3"],
        "outputs": ["[1, 2]"],
        # As careless as checkers are: it raises, and runs out of stack, on most of what is no list.
        "checker": "import ast\ndef check(given, expected, actual):\n    return sum(ast.literal_eval(actual)) == 3\n",
    }
    reward = await scored("code_stdio", answer(f"print('{printed}')"), json.dumps(truth))
    assert reward.value == 0.0
    right = await scored("code_stdio", answer("print([3, 0])"), json.dumps(truth))
    assert right.value == 1.0


@pytest.mark.parametrize("style", TRUTHS)
async def test_the_truth_is_nowhere_near_the_answer(services: RewardServices, scored: Scored, style: str) -> None:
    # It finds nothing to return: were there a test or an expected value, the error would be another one.
    code = tricks.SEARCH.replace('print("found", found)', "return found") + (
        "def add(a, b):\n    found = search()\n    if found:\n        return a + b\n    return 12345\n"
    )
    assert (await scored(style, answer(code), json.dumps(TRUTHS[style]))).value == 0.0
    # That it would find one where there is one.
    assert services.executor is not None
    assert isinstance(tricks.FUNCTION[2].arguments, tuple)
    result = await services.executor.verify(
        code,
        tricks.FUNCTION[2:],
        entry_point="add",
        files=[tricks.TEST_FILE],
        limits=Limits(wall_time_s=20),
    )
    assert result.all_passed
