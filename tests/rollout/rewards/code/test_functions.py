"""The rewards of programs at a real executor: what is worth what, and what is not scored at all."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from executor_service import Cause
from rollout.rewards import NotScored, Reward, RewardServices, Sample, find_reward, parse_rewards

Scored = Callable[..., Any]

DOUBLE = json.dumps({"inputs": ["1\n", "2\n", "3\n", "4\n"], "outputs": ["2\n", "4\n", "6\n", "8\n"]})
RIGHT = "print(2 * int(input()))"
HALF = "n = int(input())\nprint(2 * n if n % 2 else 'no')"
CALLS = json.dumps({"fn_name": "double", "inputs": ["1", "[1]", '"a"'], "outputs": ["2", "[1, 1]", '"aa"']})
ASSERTS = json.dumps({"assert_case": ["assert double(1) == 2", "assert double('a') == 'aa'"]})
TESTS = "import pytest\nfrom solution import double\ndef test_int(): assert double(1) == 2\n"
TESTS += (
    "def test_text(): assert double('a') == 'aa'\ndef test_error():\n    with pytest.raises(TypeError): double(None)\n"
)
TRUTHS = {"code_stdio": DOUBLE, "code_function": CALLS, "code_asserts": ASSERTS, "code_pytest": TESTS}
HUMANEVAL = json.dumps(
    {
        "prompt": (
            'from typing import List\n\ndef scale(x: int) -> int:\n    return 2\n\ndef double(x):\n    """Doubles."""\n'
        ),
        "test": "def check(candidate):\n    assert candidate(3) == 3 * scale(3)\n    assert candidate('a') == 'aa'\n",
        "entry_point": "double",
    }
)


def fenced(code: str, tag: str = "python") -> str:
    return f"I think so:\n```{tag}\n{code}\n```\nThat is all."


@pytest.mark.parametrize(
    ("name", "code", "value", "passed"),
    [
        ("code_stdio", RIGHT, 1.0, 1.0),
        ("code_stdio", HALF, 0.0, 0.5),
        ("code_function", "def double(x): return x * 2", 1.0, 1.0),
        ("code_function", "class Solution:\n    def double(self, x: Optional[int]): return x * 2", 1.0, 1.0),
        ("code_function", "from __future__ import annotations\ndef double(x: deque): return x + x", 1.0, 1.0),
        ("code_function", "def double(x): return x if isinstance(x, list) else x + x", 0.0, 2 / 3),
        ("code_asserts", "def double(x): return x * 2", 1.0, 1.0),
        ("code_asserts", "def double(x): return 2", 0.0, 0.5),
        ("code_pytest", "def double(x): return x * 2", 1.0, 1.0),
        ("code_pytest", "def double(x): return 2", 0.0, 1 / 3),
    ],
)
async def test_the_value_of_an_answer(scored: Scored, name: str, code: str, value: float, passed: float) -> None:
    if name != "code_pytest":  # which takes long to load
        reward = await scored(name, fenced(code), TRUTHS[name])
        assert (reward.value, reward.parts["passed"], reward.parts["answered"]) == (value, passed, 1.0)
    arguments = {"continuous": True, "case_parts": True, "wall_time_s": 60.0}
    continuous = await scored(name, fenced(code), TRUTHS[name], **arguments)
    assert continuous.value == continuous.parts["passed"] == passed
    cases = [value for part, value in continuous.parts.items() if part.startswith("case/")]
    assert len(cases) == continuous.parts["cases"]
    assert sum(cases) / len(cases) == passed


@pytest.mark.parametrize("name", [*TRUTHS, "humaneval"])
@pytest.mark.parametrize("answer", ["I don't know.", "```json\n{}\n```", fenced(" "), ""])
async def test_no_code_is_worth_nothing(scored: Scored, name: str, answer: str) -> None:
    truth = HUMANEVAL if name == "humaneval" else TRUTHS[name]
    arguments = {"whole_text": False} if name == "humaneval" else {}
    reward = await scored(name, answer, truth, **arguments)
    assert (reward.value, reward.parts["answered"], reward.parts["cases"]) == (0.0, 0.0, 0.0)


@pytest.mark.parametrize("name", [*TRUTHS, "humaneval"])
@pytest.mark.parametrize(
    "code", ["x = '\ud800'", "x = '\0'", "#" * (1 << 20) + "#", "def", "import nothing_of_this_name"]
)
async def test_code_that_can_not_run_is_the_answers_fault(scored: Scored, name: str, code: str) -> None:
    reward = await scored(name, fenced(code), HUMANEVAL if name == "humaneval" else TRUTHS[name])
    assert (reward.value, reward.parts["answered"]) == (0.0, 1.0)


@pytest.mark.parametrize(
    "answer",
    [
        "    return x * scale(x)\n",
        fenced("    return x * scale(x)"),
        "return x * scale(x)",
        "    if x:\n        return x * scale(x)\n    return x\n\nprint(double(1))\nassert False\n",
        fenced("def double(x):\n    return x * scale(x)"),
        fenced("from __future__ import annotations\n\ndef double(x: List[int]):\n    return x * 2"),
        "def double(x):\n    return x * 2\n",
    ],
)
async def test_a_body_and_a_program_complete_a_problem(scored: Scored, answer: str) -> None:
    assert (await scored("humaneval", answer, HUMANEVAL)).value == 1.0
    assert (await scored("humaneval", answer.replace("return x *", "return 1 +"), HUMANEVAL)).value == 0.0


async def test_the_columns_of_a_row_are_a_problem_too(scored: Scored) -> None:
    row = json.loads(HUMANEVAL)
    assert (await scored("humaneval", "    return x * 2", "", row=row)).value == 1.0


async def test_helpers_of_the_prompt_are_the_tests_own(scored: Scored) -> None:
    cheat = "def scale(x):\n    return 0\n\ndef double(x):\n    return 'aa' if x == 'a' else 0\n"
    assert (await scored("humaneval", fenced(cheat), HUMANEVAL)).value == 0.0


@pytest.mark.parametrize(
    ("truth", "code", "name"),
    [(DOUBLE, RIGHT, "code_stdio"), (CALLS, "double = lambda x: x * 2", ""), (ASSERTS, "double = lambda x: x * 2", "")],
)
async def test_data_of_several_kinds(scored: Scored, truth: str, code: str, name: str) -> None:
    assert (await scored("code_tests", fenced(code), truth)).value == 1.0
    assert (await scored("code_tests", fenced("print(1)"), truth)).value == 0.0


async def test_other_languages(scored: Scored) -> None:
    reward = await scored("code_stdio", fenced("read n; echo $((2 * n))", "sh"), DOUBLE, language="bash")
    assert reward.value == 1.0
    with pytest.raises(NotScored, match="klingon") as raised:
        await scored("code_stdio", fenced("x", "klingon"), DOUBLE, language="klingon")
    assert raised.value.cause is Cause.INFRA


@pytest.mark.parametrize(
    ("printed", "arguments", "value"),
    [
        ("2.0005 ", {}, 0.0),
        ("2.0005 ", {"comparison": "float"}, 0.0),
        ("2.0005 ", {"comparison": "float", "absolute_tolerance": 1e-3}, 1.0),
        ("2.0000000001 ", {"comparison": "float"}, 1.0),
        ("2.0 ", {"comparison": "exact"}, 0.0),
        ("2.0\n", {"comparison": "exact"}, 1.0),
    ],
)
async def test_comparisons(scored: Scored, printed: str, arguments: dict[str, Any], value: float) -> None:
    truth = json.dumps({"inputs": [""], "outputs": ["2.0\n"]})
    code = fenced(f"print({printed!r}, end='')")
    assert (await scored("code_stdio", code, truth, **arguments)).value == value


async def test_cases_can_be_fewer(scored: Scored) -> None:
    reward = await scored("code_stdio", fenced(HALF), DOUBLE, max_cases=2, seed=3, case_parts=True)
    assert reward.parts["cases"] == 2
    stopped = await scored("code_stdio", fenced("print('no')"), DOUBLE, stop_on_failure=True)
    assert (stopped.parts["wrong"], stopped.parts["passed"], stopped.parts["cases"]) == (0.25, 0.0, 4)


async def test_points_count_where_the_share_does(scored: Scored) -> None:
    checker = "def check(given, expected, actual):\n    return int(actual) / int(expected)"
    truth = json.dumps({"inputs": ["1", "2"], "outputs": ["4", "2"], "checker": checker})
    reward = await scored("code_stdio", fenced("print(input())"), truth, continuous=True)
    assert (reward.value, reward.parts["passed"], reward.parts["partial"]) == (0.625, 0.5, 0.5)
    assert (await scored("code_stdio", fenced("print(input())"), truth)).value == 0.0


async def test_a_limit_is_the_answers_fault(scored: Scored) -> None:
    code = "if int(input()) > 1:\n    while True: pass\nprint(2)"
    reward = await scored("code_stdio", fenced(code), DOUBLE, wall_time_s=0.3, max_cases=2)
    assert reward.value == 0.0
    assert reward.parts["time_limit"] >= 0.5


CHECKED = {
    "inputs": ["3"],
    "outputs": ["1 2 3"],
    "checker": "def check(given, expected, actual):\n    return sorted(map(int, actual.split())) == [1, 2, 3]\n",
}


@pytest.mark.parametrize(
    ("printed", "value"), [("3 2 1", 1.0), ("1 2", 0.0), ("None", 0.0), ("1 2 \udce9", 0.0), ("9" * 5000, 0.0)]
)
async def test_a_checker_decides_and_breaking_it_is_worth_nothing(scored: Scored, printed: str, value: float) -> None:
    code = f"import os\nos.write(1, {printed!r}.encode('utf-8', 'surrogateescape'))"
    assert (await scored("code_stdio", fenced(code), json.dumps(CHECKED))).value == value


async def test_a_checker_has_its_own_time_and_long_outputs_have_room(scored: Scored) -> None:
    endless = json.dumps(CHECKED | {"checker": "def check(given, expected, actual):\n    while True: pass\n"})
    with pytest.raises(NotScored, match=r"BROKEN_CASE: .*longer than 0\.5 s"):
        await scored("code_stdio", fenced("print(1)"), endless, checker_time_s=0.5, wall_time_s=60.0)
    long = json.dumps({"inputs": [""], "outputs": ["x" * (2 << 20)]})
    answer = fenced("print('x' * (2 << 20))")
    with pytest.raises(NotScored):
        await scored("code_stdio", answer, long)
    assert (await scored("code_stdio", answer, long, output_mb=3)).value == 1.0


@pytest.mark.parametrize(
    ("name", "truth"),
    [
        ("code_stdio", json.dumps(CHECKED | {"checker": "def check(a, b, c): return 1 / 0"})),
        ("code_stdio", "not JSON"),
        ("code_asserts", json.dumps(["assert double(1) = 2"])),
        ("code_asserts", json.dumps(["def test():\n    assert double(1) == 3"])),
        ("code_asserts", json.dumps({"assert_case": ["assert double(1)"], "setup_code": "import nothing_of_the_kind"})),
        ("code_pytest", "import nothing_of_the_kind"),
        ("humaneval", json.dumps({"prompt": "def f():", "test": "", "entry_point": "f"})),
    ],
)
async def test_a_broken_problem_is_not_scored(scored: Scored, name: str, truth: str) -> None:
    with pytest.raises(NotScored) as raised:
        await scored(name, fenced("def double(x): return x * 2"), truth, wall_time_s=60.0)
    assert raised.value.cause is Cause.TASK


async def test_without_an_executor_nothing_is_scored() -> None:
    with pytest.raises(NotScored, match="no executor") as raised:
        await find_reward("code_stdio")(Sample(fenced(RIGHT), DOUBLE), RewardServices())
    assert raised.value.cause is Cause.INFRA


def test_arguments_of_a_file_are_checked() -> None:
    arguments = {"comparison": "float", "continuous": True, "wall_time_s": 2}
    parse_rewards([{"fn": "code_stdio", "args": arguments}])
    with pytest.raises(Exception, match=re.escape("reward[0].args.comparison is 'close'")):
        parse_rewards([{"fn": "code_stdio", "args": {"comparison": "close"}}])


async def test_a_composition_grades(services: RewardServices) -> None:
    composed = parse_rewards([{"fn": "code_stdio", "weight": 2.0, "args": {"continuous": True}}, {"fn": "code_tests"}])
    reward = await composed.score(Sample(fenced(HALF), DOUBLE), services)
    assert isinstance(reward, Reward)
    assert (reward.value, reward.parts["code_stdio/passed"]) == (1.0, 0.5)
