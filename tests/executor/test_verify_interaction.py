"""Candidates that talk with an interactor of the task, on a real server: who is right, who is at fault, and what
neither can do to the other."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil

import pytest

from executor_service import (
    Cause,
    Checker,
    Comparison,
    ExecutorClient,
    FunctionCase,
    InputFile,
    InvalidRequest,
    Limits,
    Outcome,
    StdioCase,
    Verdict,
    VerifyResult,
)
from tests.executor.levels import EXTREMES, Level
from tests.executor.servers import Server, processes_with, wait_for

GUESSES = """\
import sys

most, secret = map(int, open(sys.argv[1]).read().split())
assert open(sys.argv[3]).read() == "answer"
print(most, flush=True)
for asked in range(10):
    guess = int(input())
    if guess == secret:
        print("equal", flush=True)
        open(sys.argv[2], "w").write(f"{asked + 1} guesses")
        sys.exit(0)
    print("less" if secret < guess else "greater", flush=True)
print("too many guesses", file=sys.stderr)
sys.exit(1)
"""
INTERACTOR = Checker(GUESSES)
CASE = StdioCase(b"1000 37", b"answer")
BISECTS = """\
low, high = 1, int(input())
while True:
    middle = (low + high) // 2
    print(middle, flush=True)
    said = input()
    if said == "equal":
        break
    low, high = (low, middle - 1) if said == "less" else (middle + 1, high)
"""
BISECTS_CPP = """\
#include <iostream>
#include <string>
int main() {
    int low = 1, high; std::string said;
    std::cin >> high;
    while (true) {
        int middle = (low + high) / 2;
        std::cout << middle << std::endl;
        std::cin >> said;
        if (said == "equal") return 0;
        if (said == "less") high = middle - 1; else low = middle + 1;
    }
}
"""
GUESSES_CPP = """\
#include <fstream>
#include <iostream>
int main(int argc, char** argv) {
    int most, secret, guess;
    std::ifstream(argv[1]) >> most >> secret;
    std::cout << most << std::endl;
    for (int asked = 0; asked < 10 && std::cin >> guess; asked++) {
        if (guess == secret) { std::cout << "equal" << std::endl; return 0; }
        std::cout << (secret < guess ? "less" : "greater") << std::endl;
    }
    return 1;
}
"""
MARKER = f"76543.{os.getpid():08d}31"
NO_GXX = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")


async def talked(executor: ExecutorClient, code: str, interactor: str = GUESSES, *, wall_s: float = 20) -> VerifyResult:
    judge = Checker(interactor, limits=Limits(wall_time_s=1))  # and the candidate's
    return await executor.verify(code, [CASE], interactor=judge, limits=Limits(wall_time_s=wall_s))


def ended(result: VerifyResult) -> tuple[Verdict, Cause]:
    [case] = result.cases
    return case.verdict, case.cause


async def test_one_that_asks_well_is_right(executor: ExecutorClient) -> None:
    result = await talked(executor, BISECTS)
    assert ended(result) == (Verdict.PASSED, Cause.POLICY), result.cases[0].message
    execution = result.cases[0].execution
    assert execution is not None
    assert (execution.outcome, execution.exit_code) == (Outcome.FINISHED, 0)
    assert execution.stdout.text.split()[:2] == ["500", "250"]


@pytest.mark.parametrize("level", EXTREMES)
async def test_at_every_level(level: Level) -> None:
    with level.running("max_concurrent=2") as server:
        async with ExecutorClient(server.target) as executor:
            found = [ended(await talked(executor, code))[0] for code in (BISECTS, "input()", f"{BISECTS}\n1 / 0")]
            assert found == [Verdict.PASSED, Verdict.WRONG_ANSWER, Verdict.FAILED]
            late = await talked(executor, "import sys; input(); print(500); sys.stdin.readline()", wall_s=1)
            assert ended(late) == (Verdict.FAILED, Cause.POLICY)


async def test_a_caller_who_leaves_ends_both(executor: ExecutorClient, server: Server) -> None:
    forever = "while True: print(1, flush=True); input()"
    sleeper = f"import subprocess; subprocess.Popen(['sleep', '{MARKER}'])\n"
    call = asyncio.ensure_future(talked(executor, sleeper + forever, sleeper + forever))
    await asyncio.to_thread(wait_for, lambda: processes_with(MARKER) != [])
    call.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await call
    await asyncio.to_thread(wait_for, lambda: processes_with(MARKER) == [] and server.status().running == 0)


@pytest.mark.parametrize(
    ("code", "verdict", "said"),
    [
        ("n = int(input())\nfor i in range(1, n): print(i, flush=True); input()", "WRONG_ANSWER", "too many guesses"),
        ("input(); print('seven', flush=True); input()", "WRONG_ANSWER", "ValueError"),
        ("input()", "WRONG_ANSWER", "EOFError"),
        ("pass", "WRONG_ANSWER", "EOFError"),
        ("input(); raise RuntimeError", "FAILED", "exit code 1"),
        (f"{BISECTS}\nraise SystemExit(7)", "FAILED", "exit code 7"),
        ("import os\nos.write(0, b'37\\n')", "FAILED", ""),
        ("print(open('answer').read())", "FAILED", ""),
        ("print(open('input').read())", "FAILED", ""),
        ("syntax error", "FAILED", ""),
    ],
)
async def test_who_does_not_is_wrong(executor: ExecutorClient, code: str, verdict: str, said: str) -> None:
    result = await talked(executor, code)
    assert ended(result) == (Verdict(verdict), Cause.POLICY), result.cases[0].message
    assert said in result.cases[0].message


async def test_who_waits_for_ever_is_told_to_flush(executor: ExecutorClient) -> None:
    codes = (
        "import sys; input(); print(500); sys.stdin.readline()",  # it does not flush
        "input(); input()",
        f"{BISECTS}\ninput_again = __import__('time').sleep(600)",
    )
    results = await asyncio.gather(*(talked(executor, code, wall_s=1) for code in codes))
    for code, result in zip(codes, results, strict=True):
        assert ended(result) == (Verdict.FAILED, Cause.POLICY), (code, result.cases[0].message)
        assert "does it flush its output" in result.cases[0].message


async def test_who_computes_too_long_is_not_told_to_flush(executor: ExecutorClient) -> None:
    slow = await talked(executor, "most = input()\nwhile True: pass", wall_s=3)
    assert ended(slow) == (Verdict.FAILED, Cause.POLICY)
    assert "flush" not in slow.cases[0].message


@pytest.mark.parametrize(
    ("interactor", "said"),
    [
        ("def (", "SyntaxError"),
        ("import absent", "absent"),
        ("import sys\nsys.exit(3)", "failed itself"),
        ("import sys\nsys.exit(1)", "before the candidate had said anything"),
        ("raise RuntimeError('broken')", "before the candidate had said anything"),
    ],
)
async def test_an_interactor_that_fails_by_itself_is_the_tasks(
    executor: ExecutorClient, interactor: str, said: str
) -> None:
    result = await talked(executor, "input()\nwhile True: input()", interactor)
    assert ended(result) == (Verdict.BROKEN_CASE, Cause.TASK), result.cases[0].message
    assert said in result.cases[0].message


@pytest.mark.parametrize("said", ["(", "open('x')", "1 / 0", "\\x00"])
async def test_what_an_interactor_can_not_read_is_wrong(executor: ExecutorClient, said: str) -> None:
    reads = "import ast\nast.literal_eval(input())"
    result = await talked(executor, f"print({said!r}, flush=True)\ninput()", reads)
    assert ended(result) == (Verdict.WRONG_ANSWER, Cause.POLICY), result.cases[0].message


@pytest.mark.parametrize(
    "interactor",
    [
        "input()\nwhile True: pass",
        "import os\ninput()\nos.kill(os.getpid(), 9)",
        "input()\nkept = ['x' * 10**9 for _ in range(10**6)]",
    ],
)
async def test_one_that_fails_on_what_it_hears_is_the_candidates(executor: ExecutorClient, interactor: str) -> None:
    result = await talked(executor, "print(1, flush=True)\nwhile True: input()", interactor, wall_s=3)
    assert ended(result) == (Verdict.WRONG_ANSWER, Cause.POLICY), result.cases[0].message
    assert "failed on what the candidate said" in result.cases[0].message


FLOODS = "import sys\nwhile True: sys.stdout.write('x' * 65536)"


@pytest.mark.parametrize(
    ("code", "interactor"),
    [
        (FLOODS, "import time\ntime.sleep(600)"),
        (FLOODS, FLOODS),
        ("import time\ntime.sleep(600)", FLOODS),
        (FLOODS, "import sys\nfor line in sys.stdin: pass"),
        ("pass", FLOODS),
        (FLOODS, "pass"),
    ],
)
async def test_who_never_listens_or_never_stops_is_ended(executor: ExecutorClient, code: str, interactor: str) -> None:
    result = await talked(executor, code, interactor, wall_s=1)
    assert not result.all_passed
    assert result.cases[0].cause in (Cause.POLICY, Cause.TASK)
    assert (await executor.execute("print(1)")).ok


async def test_many_cases_and_many_exchanges(executor: ExecutorClient) -> None:
    echo = "for _ in range(500):\n    print(1, flush=True)\n    assert input() == '1'\n"
    back = "import sys\nfor line in sys.stdin: print(line.strip(), flush=True)"
    cases = [StdioCase(b"", b"", str(number)) for number in range(20)]
    result = await executor.verify(echo, cases, interactor=Checker(back))
    assert result.all_passed, result.cases
    assert [case.case_id for case in result.cases] == [str(number) for number in range(20)]
    stopped = await executor.verify("pass", cases, interactor=Checker(GUESSES), stop_on_failure=True)
    assert [case.verdict for case in stopped.cases][1:] == [Verdict.NOT_RUN] * 19


@pytest.mark.parametrize(("most", "verdict"), [(10, Verdict.PASSED), (3, Verdict.WRONG_ANSWER)])
async def test_a_checker_reads_what_the_interactor_has_written(
    executor: ExecutorClient, most: int, verdict: Verdict
) -> None:
    check = f"def check(given, expected, actual):\n    return int(actual.split()[0]) <= {most}\n"
    checker = Checker(check, entry_point="check")
    result = await executor.verify(BISECTS, [CASE], interactor=INTERACTOR, checker=checker)
    assert ended(result) == (verdict, Cause.POLICY), result.cases[0].message


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ({"interactor": Checker("")}, "interactor.code"),
        ({"interactor": Checker("pass", entry_point="check")}, "interactor.entry_point"),
        ({"interactor": Checker("pass", "cobol")}, "interactor.language"),
        ({"interactor": Checker("pass", files=(InputFile("input", b""),))}, r"interactor.files\[0\].path"),
        ({"interactor": Checker("pass", limits=Limits(wall_time_s=1e9))}, "interactor.limits.wall_time_s"),
        ({"interactor": INTERACTOR, "comparison": Comparison.EXACT}, "comparison"),
    ],
)
async def test_what_is_wrong_is_named(executor: ExecutorClient, more: dict[str, object], field: str) -> None:
    with pytest.raises(InvalidRequest, match=field):
        await executor.verify("pass", [CASE], **more)  # type: ignore[arg-type]


async def test_only_programs_talk(executor: ExecutorClient) -> None:
    with pytest.raises(InvalidRequest, match="interactor is set, must not be for FUNCTION"):
        await executor.verify("def f(): ...", [FunctionCase()], entry_point="f", interactor=INTERACTOR)


@NO_GXX
@pytest.mark.parametrize(
    ("candidate", "interactor"),
    [(("cpp", BISECTS_CPP), ("cpp", GUESSES_CPP)), (("python", BISECTS), ("cpp", GUESSES_CPP))],
)
async def test_compiled_programs(compiling: Server, candidate: tuple[str, str], interactor: tuple[str, str]) -> None:
    async with ExecutorClient(compiling.target) as executor:
        judge = Checker(interactor[1], interactor[0])
        cases = [StdioCase(f"1000 {secret}".encode(), b"") for secret in (1, 37, 1000)]
        result = await executor.verify(candidate[1], cases, language=candidate[0], interactor=judge)
        assert result.all_passed, result.cases
        broken = await executor.verify(candidate[1], cases, language=candidate[0], interactor=Checker("int", "cpp"))
        assert {(case.verdict, case.cause) for case in broken.cases} == {(Verdict.BROKEN_CASE, Cause.TASK)}
        assert "does not compile" in broken.cases[0].message
        if candidate[0] == "cpp":
            bad = await executor.verify("int", cases, language="cpp", interactor=judge)
            assert {(case.verdict, case.cause) for case in bad.cases} == {(Verdict.FAILED, Cause.POLICY)}
