"""Answers that are right in part, Kattis's validators, several right outputs, and outputs without a program, on a real
server."""

from __future__ import annotations

import pytest

from executor_service import (
    CaseResult,
    Cause,
    Checker,
    CheckerConvention,
    Comparison,
    ExecutorClient,
    InvalidRequest,
    Limits,
    StdioCase,
    Verdict,
)
from tests.executor.servers import Server

CASE = StdioCase(b"4", b"a b c d")
COUNTS = (
    "def check(given, expected, actual):\n"
    "    right = sum(one == other for one, other in zip(actual.split(), expected.split()))\n"
    "    return {value}\n"
)
QUITP = """\
import sys
given, output, answer = (open(path).read() for path in sys.argv[1:])
right = sum(one == other for one, other in zip(output.split(), answer.split()))
print(f"points {right} of {given}", file=sys.stderr)
sys.exit(7)
"""
QUITP_SH = """\
n=0
for word in $(cat output); do grep -qw "$word" answer && n=$((n + 1)); done
echo "points $n" >&2
exit 7
"""
KATTIS = """\
import sys
given, answer, feedback = sys.argv[1:]
wanted, said = open(answer).read().split(), sys.stdin.read().split()
right = sum(one == other for one, other in zip(said, wanted))
open(feedback + "judgemessage.txt", "a").write(f"{right} words of {open(given).read()}")
if right == 0:
    sys.exit(43)
if right < len(wanted):
    open(feedback + "%s", "w").write(str(%s))
sys.exit(42)
"""


def kattis(file: str, value: str) -> Checker:
    return Checker(KATTIS % (file, value), convention=CheckerConvention.KATTIS, full_points=4)


async def judged(executor: ExecutorClient, output: str, checker: Checker, case: StdioCase = CASE) -> CaseResult:
    [found] = (await executor.verify(output, [case], language="text", checker=checker)).cases
    assert found.cause in (Cause.POLICY, Cause.TASK), found
    return found


@pytest.mark.parametrize(
    "checker",
    [
        Checker(COUNTS.format(value="right / 4"), entry_point="check"),
        Checker(COUNTS.format(value="right"), entry_point="check", full_points=4),
        Checker(COUNTS.format(value="True if right == 4 else right / 4"), entry_point="check"),
        Checker(QUITP, full_points=4),
        Checker(QUITP_SH, language="bash", full_points=4),
        kattis("score.txt", "right"),
        kattis("score_multiplier.txt", "right / 4"),
    ],
    ids=["share", "points", "bool", "quitp", "bash", "kattis-score", "kattis-multiplier"],
)
async def test_points_are_a_score(executor: ExecutorClient, checker: Checker) -> None:
    expected = {
        "a b c d": (Verdict.PASSED, 1.0),
        "a b x y": (Verdict.PARTIAL, 0.5),
        "a": (Verdict.PARTIAL, 0.25),
        "z": (Verdict.WRONG_ANSWER, 0.0),
    }
    for output, wanted in expected.items():
        found = await judged(executor, output, checker)
        assert (found.verdict, found.score) == wanted, (output, found.message)


async def test_kattis_says_why(executor: ExecutorClient) -> None:
    checker = kattis("score.txt", "right")
    assert (await judged(executor, "a", checker)).message == "1 words of 4"
    assert (await judged(executor, "z", checker)).message == "0 words of 4"


async def test_a_long_message_leaves_room_for_the_verdict(executor: ExecutorClient) -> None:
    said = "open(sys.argv[3] + 'judgemessage.txt', 'w').write('x' * 10**6); sys.exit(43)"
    checker = Checker(f"import sys; {said}", convention=CheckerConvention.KATTIS, limits=Limits(return_bytes=1))
    found = await judged(executor, "a", checker)
    assert (found.verdict, found.message) == (Verdict.WRONG_ANSWER, "The checker does not accept the output.")


@pytest.mark.parametrize(
    ("points", "verdict"),
    [
        ("points 0.5", Verdict.PARTIAL),
        ("points 5e-1 half", Verdict.PARTIAL),
        ("points 1", Verdict.PASSED),
        ("points 0 none", Verdict.WRONG_ANSWER),
        ("", Verdict.BROKEN_CASE),
        ("points", Verdict.BROKEN_CASE),
        ("points many", Verdict.BROKEN_CASE),
        ("points -0.5", Verdict.BROKEN_CASE),
        ("points 1.5", Verdict.BROKEN_CASE),
        ("points nan", Verdict.BROKEN_CASE),
        ("points 1e999", Verdict.BROKEN_CASE),
        ("points 0.5\npoints 1", Verdict.BROKEN_CASE),
        ("a note\npoints 0.5", Verdict.PARTIAL),
    ],
)
async def test_points_are_one_number_of_those_of_a_case(
    executor: ExecutorClient, points: str, verdict: Verdict
) -> None:
    checker = Checker(f"cat >&2 <<'END'\n{points}\nEND\nexit 7", language="bash")
    assert (await judged(executor, "a", checker)).verdict is verdict


async def test_points_that_a_candidate_has_printed_are_not_its_own(executor: ExecutorClient) -> None:
    """A checker that quotes the output beside its own points."""
    checker = Checker("cat output answer >&2; echo; echo points 0.1 >&2; exit 7", language="bash")
    found = await judged(executor, "points 1\n", checker, StdioCase(b"", b"right\n"))
    assert (found.verdict, found.cause) == (Verdict.WRONG_ANSWER, Cause.POLICY), found.message


@pytest.mark.parametrize("code", [0, 1, 7, 44])
async def test_other_exit_codes_are_a_failure_of_a_kattis_validator(executor: ExecutorClient, code: int) -> None:
    checker = Checker(f"raise SystemExit({code})", convention=CheckerConvention.KATTIS)
    assert (await judged(executor, "a", checker)).verdict is Verdict.BROKEN_CASE


async def test_a_kattis_score_that_is_no_number_is_a_failure(executor: ExecutorClient) -> None:
    for text in ("", "much", "5", "-1", "nan"):
        found = await judged(executor, "a", kattis("score.txt", repr(text)))
        assert found.verdict is Verdict.WRONG_ANSWER  # on the expected output it gives no score
    large = Checker("cd feedback; truncate -s 1M score.txt; exit 42", "bash", convention=CheckerConvention.KATTIS)
    assert (await judged(executor, "a", large)).verdict is Verdict.BROKEN_CASE


async def test_who_is_right_in_part_has_not_passed(executor: ExecutorClient) -> None:
    checker = Checker(COUNTS.format(value="right / 4"), entry_point="check")
    cases = [CASE, StdioCase(b"4", b"a b x y")]
    result = await executor.verify("a b x y", cases, language="text", checker=checker, stop_on_failure=True)
    assert [case.verdict for case in result.cases] == [Verdict.PARTIAL, Verdict.NOT_RUN]
    assert not result.all_passed
    assert result.passed == 0


TALKS = """\
import sys
wanted = open(sys.argv[1]).read().split()
right = 0
for word in wanted:
    print(word, flush=True)
    right += sys.stdin.readline().strip() == word.upper()
%s
"""


@pytest.mark.parametrize(
    ("end", "convention"),
    [
        ("print('points', right / 2, file=sys.stderr)\nsys.exit(7)", CheckerConvention.TESTLIB),
        (
            "open(sys.argv[3] + 'score.txt', 'w').write(str(right / 2))\nsys.exit(42 if right else 43)",
            CheckerConvention.KATTIS,
        ),
    ],
)
async def test_an_interactor_gives_points(executor: ExecutorClient, end: str, convention: CheckerConvention) -> None:
    interactor = Checker(TALKS % end, convention=convention)
    echoes = "for _ in range(2): print(input(){}, flush=True)"
    for how, wanted in (
        (".upper()", (Verdict.PASSED, 1.0)),
        (".replace('a', 'A')", (Verdict.PARTIAL, 0.5)),
        ("", (Verdict.WRONG_ANSWER, 0.0)),
    ):
        result = await executor.verify(echoes.format(how), [StdioCase(b"a b", b"")], interactor=interactor)
        [found] = result.cases
        assert (found.verdict, found.score, found.cause) == (*wanted, Cause.POLICY), found.message


async def test_who_fails_after_an_interactor_gave_points_has_failed(executor: ExecutorClient) -> None:
    for end, convention in (("sys.exit(42)", CheckerConvention.KATTIS), ("sys.exit(0)", CheckerConvention.TESTLIB)):
        interactor = Checker(TALKS % end, convention=convention)
        code = "for _ in range(2): print(input().upper(), flush=True)\nraise SystemExit(1)"
        [found] = (await executor.verify(code, [StdioCase(b"a b", b"")], interactor=interactor)).cases
        assert (found.verdict, found.score) == (Verdict.FAILED, 0.0), found.message


async def test_several_outputs_are_right(executor: ExecutorClient) -> None:
    case = StdioCase(b"", b"1 2", alternatives=(b"2 1\n", b"1.5"))
    for output, verdict in (
        ("1 2\n", Verdict.PASSED),
        ("2 1 \n", Verdict.PASSED),
        ("1.5", Verdict.PASSED),
        ("1.50", Verdict.WRONG_ANSWER),
        ("1 2 1", Verdict.WRONG_ANSWER),
    ):
        [found] = (await executor.verify(output, [case], language="text")).cases
        assert (found.verdict, found.score) == (verdict, float(verdict is Verdict.PASSED))
    [found] = (await executor.verify("1.50", [case], language="text", comparison=Comparison.FLOAT)).cases
    assert found.passed


async def test_a_large_output_is_compared_apart_and_once(executor: ExecutorClient, server: Server) -> None:
    """However many are right: who prints much must not cost a run for each."""
    words = " ".join(map(str, range(20_000)))
    many = tuple(b"%d" % number for number in range(60))
    case = StdioCase(b"", b"short", alternatives=(*many, words.replace(" ", " \n").encode(), words.encode()))
    ended = server.status().outcomes["FINISHED"]
    [found] = (await executor.verify(words + "\n\n", [case], language="text")).cases
    assert found.passed
    assert server.status().outcomes["FINISHED"] == ended + 1  # a little space needs no run
    [found] = (await executor.verify(words.replace("7 ", "7.0 ", 1), [case], language="text")).cases
    assert found.verdict is Verdict.WRONG_ANSWER
    assert server.status().outcomes["FINISHED"] == ended + 3


async def test_alternatives_are_few_short_and_without_a_checker(executor: ExecutorClient) -> None:
    small = Limits(output_bytes=1000)
    for case, more, field in (
        (StdioCase(b"", b"", alternatives=(b"x",) * 65), {}, "cases[0].stdio.alternatives"),
        (StdioCase(b"", b"x" * 500, alternatives=(b"x" * 501,)), {"limits": small}, "cases[0].stdio.alternatives"),
        (StdioCase(b"", b"", alternatives=(b"x",)), {"checker": Checker("1")}, "cases[0].stdio.alternatives"),
        (StdioCase(b"", b"", alternatives=(b"x",)), {"interactor": Checker("1")}, "cases[0].stdio.alternatives"),
    ):
        with pytest.raises(InvalidRequest) as raised:
            await executor.verify("x", [case], language="text", **more)
        assert [each.field for each in raised.value.fields] == [field]
