"""A program behaves as `python main.py` does, and its failure is a result."""

from __future__ import annotations

import pytest

from executor_service import Cause, ExecutorClient, InputFile, IsolationLevel, Outcome
from tests.executor.servers import Server, running


async def test_a_program_prints_and_finishes(executor: ExecutorClient, server: Server) -> None:
    result = await executor.execute("print('hello')", request_id="hello")
    assert (result.outcome, result.cause, result.exit_code) == (Outcome.FINISHED, Cause.POLICY, 0)
    assert (result.stdout.data, result.stdout.total_bytes, result.stdout.truncated) == (b"hello\n", 6, False)
    assert result.stderr.data == b""
    assert result.ok
    assert result.isolation_level is IsolationLevel.NAMESPACES
    assert (result.profile, result.request_id, result.deduplicated) == ("python-lean", "hello", False)
    assert result.served_by == server.status().served_by
    assert result.setup_time_s > 0
    assert result.cpu_time_s > 0
    assert result.wall_time_s > 0
    assert result.peak_memory_bytes > 1 << 20


async def test_stdin_reaches_the_program(executor: ExecutorClient) -> None:
    code = "import sys; data = sys.stdin.buffer.read(); print(len(data), data[:3])"
    assert (await executor.execute(code, stdin=b"\xff\x00a" * 1_000_000)).stdout.data == b"3000000 b'\\xff\\x00a'\n"


async def test_without_stdin_it_is_at_its_end(executor: ExecutorClient) -> None:
    result = await executor.execute("import sys; print(repr(sys.stdin.read()), sys.stdin.isatty())")
    assert result.stdout.data == b"'' False\n"


async def test_stdin_can_be_opened_by_name_and_not_written(executor: ExecutorClient) -> None:
    code = "import os\nprint(open('/dev/stdin').read())\ntry: os.write(0, b'x')\nexcept OSError as e: print(e.strerror)"
    assert (await executor.execute(code, stdin=b"abc")).stdout.data == b"abc\nBad file descriptor\n"


async def test_arguments_and_environment_of_the_request(executor: ExecutorClient) -> None:
    code = "import sys, os; print(sys.argv, os.environ['GREETING'])"
    result = await executor.execute(code, args=["a b", "", "é"], env={"GREETING": "good day"})
    assert result.stdout.text == "['main.py', 'a b', '', 'é'] good day\n"


@pytest.mark.parametrize(("code", "exit_code"), [("import sys; sys.exit(7)", 7), ("import os; os._exit(255)", 255)])
async def test_exit_codes(executor: ExecutorClient, code: str, exit_code: int) -> None:
    result = await executor.execute(code)
    assert (result.outcome, result.cause, result.exit_code) == (Outcome.NONZERO_EXIT, Cause.POLICY, exit_code)
    assert result.signal == 0


@pytest.mark.parametrize("number", [6, 9, 11, 15])
async def test_a_program_that_kills_itself_is_signaled(executor: ExecutorClient, number: int) -> None:
    result = await executor.execute(f"import os; os.kill(os.getpid(), {number})")
    assert (result.outcome, result.cause) == (Outcome.SIGNALED, Cause.POLICY)
    assert (result.signal, result.exit_code) == (number, 128 + number)


async def test_a_traceback_has_the_source_line(executor: ExecutorClient) -> None:
    result = await executor.execute("def f():\n    return 1 / 0\nf()")
    assert result.outcome is Outcome.NONZERO_EXIT
    assert b"return 1 / 0" in result.stderr.data
    assert b'File "/sandbox/main.py", line 2, in f' in result.stderr.data
    assert result.stderr.data.endswith(b"ZeroDivisionError: division by zero\n")


async def test_stdout_and_stderr_are_kept_apart(executor: ExecutorClient) -> None:
    result = await executor.execute("import sys; print('out'); print('err', file=sys.stderr)")
    assert (result.stdout.data, result.stderr.data) == (b"out\n", b"err\n")


async def test_output_is_bytes_and_need_not_be_text(executor: ExecutorClient) -> None:
    result = await executor.execute("import os; os.write(1, bytes(range(256)) + '\\U0001F600'.encode()[:2])")
    assert result.stdout.data == bytes(range(256)) + b"\xf0\x9f"
    assert "�" in result.stdout.text


async def test_files_of_the_request_can_be_imported(executor: ExecutorClient) -> None:
    files = [InputFile("helper.py", b"X = 41"), InputFile("data/in.txt", b"1"), InputFile("run.sh", b"echo hi", 0o755)]
    code = "import helper, os; print(helper.X + int(open('data/in.txt').read()), os.access('run.sh', os.X_OK))"
    assert (await executor.execute(code, files=files)).stdout.data == b"42 True\n"


async def test_bash_programs(executor: ExecutorClient) -> None:
    result = await executor.execute(
        'read line; echo "$0 $1 $line" | tr a-z A-Z; exit 3', language="bash", args=["x"], stdin=b"y\n"
    )
    assert (result.stdout.data, result.exit_code, result.profile) == (b"MAIN.SH X Y\n", 3, "")


async def test_child_processes_threads_and_loopback_work(executor: ExecutorClient) -> None:
    code = """
import multiprocessing, socket, subprocess, sys, threading
def double(x): return 2 * x
if __name__ == "__main__":
    with multiprocessing.Pool(2) as pool: print(pool.map(double, range(3)))
    server = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=lambda: server.accept()[0].sendall(b"over loopback"))
    thread.start()
    print(socket.create_connection(server.getsockname()).recv(99))
    thread.join()
    print(subprocess.run([sys.executable, "-c", "print('child')"], capture_output=True).stdout)
"""
    result = await executor.execute(code)
    assert result.stdout.data == b"[0, 2, 4]\nb'over loopback'\nb'child\\n'\n", result.stderr.text


async def test_python_on_the_path_is_the_interpreter_that_runs_the_program(executor: ExecutorClient) -> None:
    code = "import shutil, sys, os; print(os.path.samefile(shutil.which('python3') or '', sys.executable))"
    assert (await executor.execute(code)).stdout.data == b"True\n"


async def test_random_seeds_differ_between_runs_and_string_hashes_do_not(executor: ExecutorClient) -> None:
    code = "import random, uuid; print(hash('seed'), random.random(), uuid.uuid4())"
    results = [await executor.execute(code) for _ in range(2)]
    first, second = (result.stdout.data.split() for result in results)
    assert first[0] == second[0]  # the template's, so that the order of sets is the same in all runs of a server
    assert first[1] != second[1]
    assert first[2] != second[2]


async def test_a_program_that_closes_its_streams_ends_normally(executor: ExecutorClient) -> None:
    result = await executor.execute("import os; os.write(1, b'x'); os.close(1); os.close(2); os._exit(3)")
    assert (result.stdout.data, result.exit_code) == (b"x", 3)


async def test_programs_ignore_no_signal_that_their_server_was_started_to_ignore() -> None:
    with running("max_concurrent=1", prefix=["nohup"]) as server:
        async with ExecutorClient(server.target) as executor:
            code = "import signal; print(signal.getsignal(signal.SIGHUP).name)"
            assert (await executor.execute(code)).stdout.text == "SIG_DFL\n"
