"""The client without an event loop: real servers, threads, and an interrupted program."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import get_type_hints

import pytest

from executor_service import Executor, ExecutorUnavailable, FunctionCase, InputFile, InvalidRequest, Limits, Outcome
from executor_service.client.blocking import LimitWords
from tests.executor.servers import ROOT, Server, wait_for
from tests.pages import examples

INTERRUPTED = """
import sys
from executor_service import Executor
with Executor(sys.argv[1]) as box:
    print("READY", flush=True)
    try:
        box.run("import time; time.sleep(50)", timeout=60)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    print(box.run("print(6 * 7)").stdout.text, end="", flush=True)
"""


@pytest.fixture
def box(server: Server) -> Iterator[Executor]:
    with Executor(server.target) as entered:
        yield entered


def test_a_program_as_people_write_it(box: Executor) -> None:
    result = box.run(
        "import sys; print(sys.stdin.read().upper(), sys.argv[1:], open('a.txt').read())",
        stdin="grüße",
        args=["x"],
        files=[InputFile("a.txt", b"file")],
    )
    assert (result.outcome, result.stdout.text) == (Outcome.FINISHED, "GRÜSSE ['x'] file\n")


def test_the_timeout_is_the_programs(box: Executor) -> None:
    result = box.run("while True: pass", timeout=0.3)
    assert (result.outcome, result.cause) == (Outcome.TIME_LIMIT, "POLICY")


def test_limits_are_keywords(box: Executor) -> None:
    assert box.run("a = bytearray(600 << 20)", memory_bytes=64 << 20).outcome is Outcome.MEMORY_LIMIT


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"timeout": float("nan")}, "timeout"),
        ({"timeout": -1.0}, "timeout"),
        ({"cpu_time_s": float("inf")}, "limits.cpu_time_s"),
        ({"memory_bytes": -1}, "limits.memory_bytes"),
    ],
)
def test_what_is_no_limit_is_refused_by_name(box: Executor, given: dict[str, float], field: str) -> None:
    with pytest.raises(InvalidRequest, match=field) as refused:
        box.run("1", **given)  # type: ignore[arg-type]
    assert [each.field for each in refused.value.fields] == [field]


def test_nor_is_it_one_of_a_session(box: Executor) -> None:
    with (
        pytest.raises(InvalidRequest, match=r"limits\.cpu_time_s"),
        box.session(limits=Limits(cpu_time_s=float("nan"))),
    ):
        pass


def test_two_times_are_refused(box: Executor) -> None:
    with pytest.raises(InvalidRequest, match="give one"), box.session(limits=Limits(wall_time_s=1), timeout=2):
        pass


def test_a_session_keeps_its_state_and_ends_with_its_block(box: Executor, server: Server) -> None:
    with box.session() as session:
        session.run("x = 1")
        (branch,) = session.branch()
        branch.run("x = 5")
        assert [each.run("print(x)").stdout.text for each in (session, branch)] == ["1\n", "5\n"]
        assert session.run("while True: pass", timeout=0.3).outcome is Outcome.TIME_LIMIT
        assert session.run("print(x)").ok
        assert branch.delete()
    with pytest.raises(ZeroDivisionError), box.session() as session:
        raise ZeroDivisionError
    assert server.status().sessions == 0


def test_grading(box: Executor) -> None:
    assert box.verify("def f(x): return 2 * x", [FunctionCase((2,), 4)], entry_point="f").passed


def test_the_status_says_who_is_there(box: Executor, server: Server) -> None:
    status = box.status()
    assert list(status) == [server.target]
    assert "python" in {each.name for each in status[server.target].languages}


def test_threads_share_an_executor_and_executors_a_thread(server: Server, box: Executor) -> None:
    with ThreadPoolExecutor(8) as threads, Executor(server.target) as other:
        programs = [threads.submit((box, other)[i % 2].run, f"print({i})") for i in range(40)]
        assert [program.result().stdout.text for program in programs] == [f"{i}\n" for i in range(40)]
        assert sum(thread.name == "executors" for thread in threading.enumerate()) == 1


def test_it_may_be_entered_again_and_not_used_outside(server: Server) -> None:
    executor = Executor(server.target)
    for _ in range(2):
        with executor:
            assert executor.run("print(1)").ok
        with pytest.raises(RuntimeError, match="outside its `with` block"):
            executor.run("print(1)")
    assert "executors" not in {thread.name for thread in threading.enumerate()}


FORKED = """
import os, sys
from executor_service import Executor
def child():
    try:
        with Executor(sys.argv[1]) as box: print(box.run("print(1)").stdout.text.strip(), flush=True)
    except RuntimeError as error: print(error, flush=True)
if os.fork() == 0:
    child()
    os._exit(0)
os.wait()
with Executor(sys.argv[1]) as box:
    box.run("1")
    if os.fork() == 0:
        child()
        try: box.run("1")
        except RuntimeError as error: print(error, flush=True)
        os._exit(0)
    os.wait()
if os.fork() == 0:
    child()
    os._exit(0)
os.wait()
"""


def test_a_process_that_was_forked_after_an_executor_was_entered_is_told_and_does_not_hang(server: Server) -> None:
    words = [sys.executable, "-c", FORKED, server.target]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=60)
    told = "this process was forked after an Executor had been entered: fork before, or spawn it"
    assert done.stdout.splitlines() == ["1", told, told, told]


def test_every_limit_but_the_time_is_a_keyword() -> None:
    limits = get_type_hints(Limits)
    assert limits.pop("wall_time_s") is float
    assert get_type_hints(LimitWords) == limits


def test_where_nobody_listens_it_says_so() -> None:
    with pytest.raises(ExecutorUnavailable), Executor("127.0.0.1:1") as executor:
        executor.run("print(1)")


def test_an_interruption_kills_the_program_and_nothing_else(server: Server) -> None:
    # Whoever runs the tests in the background ignores SIGINT, and so would what they start.
    words = ["env", "--default-signal=INT", sys.executable, "-c", INTERRUPTED, server.target]
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "READY\n"
        wait_for(lambda: server.status().running == 1)
        process.send_signal(signal.SIGINT)
        assert process.stdout.read() == "interrupted\n42\n"
        assert process.wait(30) == 0
    wait_for(lambda: server.status().running == 0)


def test_the_pages_example(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    blocks = examples("how-to/programs.md", "python", {"127.0.0.1:50051": server.target})
    (example,) = [block for block in blocks if "with Executor(" in block]
    exec(example, {})
    assert capsys.readouterr().out == "hello\n\nb'42'\n"
