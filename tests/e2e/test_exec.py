"""`fairbox exec` behaves as if the program ran here: what it is given, what it writes and when, how it ends."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from executor_service import Executor
from tests.e2e.conftest import Service, fairbox
from tests.executor.servers import each_ended, wait_for

COMMAND = ("rollout.cli", "rollout.cli.exec")


def words(service: Service, *more: str) -> list[str]:
    return ["exec", "--executor", service.ports.executor, *more]


def started(service: Service, *more: str) -> subprocess.Popen[str]:
    # Whoever runs the tests in the background ignores SIGINT, and so would what they start.
    command = ["env", "--default-signal=INT", sys.executable, "-m", "rollout.cli", *words(service, *more)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True)


def test_output_comes_as_it_is_written(service: Service) -> None:
    code = "import time\nprint('first', flush=True)\ntime.sleep(60)"
    with started(service, "-c", code) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "first\n"
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        assert process.stderr is not None
        assert (process.stderr.read(), process.wait(30)) == ("", 130)
    with Executor(service.ports.executor) as box:
        wait_for(lambda: not any(each.running for each in box.status().values()))


def test_a_reader_that_leaves_ends_it(service: Service) -> None:
    with started(service, "-c", "while True: print('x' * 1000, flush=True)") as process:
        assert process.stdout is not None
        process.stdout.read(10)
        process.stdout.close()
        assert process.stderr is not None
        assert (process.stderr.read(), process.wait(30)) == ("", 141)


def test_arguments_are_the_programs_whatever_they_look_like(service: Service, tmp_path: Path) -> None:
    source = tmp_path / "show.py"
    source.write_text("import sys; print(sys.argv[1:])")
    given = ["--timeout", "-x", "--", "a b", ""]
    for front in ([str(source)], ["--", str(source)], ["-c", source.read_text(), "--"]):
        done = fairbox(*words(service, *front, *given), input="")
        assert done.stdout == f"{given}\n", done.stderr


def test_files_go_in_and_out(service: Service, tmp_path: Path) -> None:
    data, made = tmp_path / "data.txt", tmp_path / "made.txt"
    data.write_text("abc")
    code = "import os; os.mkdir('o'); open('o/r', 'w').write(open('data.txt').read() + open('d/x').read())"
    given = ["--file", str(data), "--file", f"{data}=d/x", "--out", f"o/r={made}"]
    done = fairbox(*words(service, *given, "-c", code), input="")
    assert (done.stdout, done.stderr, done.returncode) == ("", "", 0)
    assert made.read_text() == "abcabc"


def test_a_file_that_is_not_made_is_told(service: Service) -> None:
    done = fairbox(*words(service, "--out", "none.txt", "-c", "1"), input="")
    assert (done.stdout, done.stderr, done.returncode) == ("", "fairbox exec: none.txt: MISSING\n", 1)


def test_memory_has_a_limit_that_people_can_write(service: Service) -> None:
    done = fairbox(*words(service, "--memory", "64m", "-c", "bytearray(600 << 20)"), input="")
    assert "MEMORY_LIMIT" in done.stderr
    assert "67108864 bytes" in done.stderr


def test_languages_have_usual_names(service: Service) -> None:
    languages = (("py", "print(1)"), ("Python3", "print(1)"), ("sh", "echo 1"))
    ended = each_ended((words(service, "--language", *name, "-c", code) for *name, code in languages), *COMMAND)
    assert [each.out for each in ended] == ["1\n"] * 3, ended


def test_what_is_wrong_is_said_before_anything_is_lost(service: Service) -> None:
    wrong = [
        (
            ["--memory", "lots"],
            "argument --memory: is 'lots', must be a number of bytes, or one with k, m, g or t behind it",
        ),
        (["--timeout", "nan", "-c", "1"], "timeout is nan, must be a number of seconds above 0"),
        (["--language", "klingon", "-c", "1"], "language is 'klingon', must be one of"),
        (["--file", "/nonexistent", "-c", "1"], "/nonexistent: No such file or directory"),
        (["/etc/hostname"], "/etc/hostname: its suffix is none of .c .cc"),
        (["--out", "a=/nonexistent/a", "-c", "open('a', 'w')"], "/nonexistent/a: No such file or directory"),
    ]
    ended = each_ended((words(service, *given) for given, _ in wrong), *COMMAND)
    for (given, sentence), done in zip(wrong, ended, strict=True):
        assert done.code in (1, 2), given
        assert sentence in done.err
        assert "Traceback" not in done.err


def test_the_source_may_come_from_standard_input(service: Service) -> None:
    assert fairbox(*words(service), input="print(6 * 7)").stdout == "42\n"
    assert fairbox(*words(service, "-", "x"), input="import sys; print(sys.argv[1:])").stdout == "['x']\n"
