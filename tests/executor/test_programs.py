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
    assert result.peak_memory_bytes > 1 << 16


async def test_stdin_can_be_opened_by_name_and_not_written(executor: ExecutorClient) -> None:
    code = "import os\nprint(open('/dev/stdin').read())\ntry: os.write(0, b'x')\nexcept OSError as e: print(e.strerror)"
    assert (await executor.execute(code, stdin=b"abc")).stdout.data == b"abc\nBad file descriptor\n"


@pytest.mark.parametrize("number", [6, 9, 11, 15])
async def test_a_program_that_kills_itself_is_signaled(executor: ExecutorClient, number: int) -> None:
    result = await executor.execute(f"import os; os.kill(os.getpid(), {number})")
    assert (result.outcome, result.cause) == (Outcome.SIGNALED, Cause.POLICY)
    assert (result.signal, result.exit_code) == (number, 128 + number)


async def test_output_is_bytes_and_need_not_be_text(executor: ExecutorClient) -> None:
    odd = bytes(range(256)) * 4 + b'\0\xed\xa0\x80\x1b]0;title\x07{"type":"ended"}' + "\U0001f600".encode()[:2]
    result = await executor.execute(f"import os; os.write(1, {odd!r})")
    assert result.stdout.data == odd
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


async def test_python_on_the_path_is_the_interpreter_that_runs_the_program(executor: ExecutorClient) -> None:
    code = "import shutil, sys, os; print(os.path.samefile(shutil.which('python3') or '', sys.executable))"
    assert (await executor.execute(code)).stdout.data == b"True\n"


async def test_programs_ignore_no_signal_that_their_server_was_started_to_ignore() -> None:
    with running("max_concurrent=1", prefix=["nohup"]) as server:
        async with ExecutorClient(server.target) as executor:
            code = "import signal; print(signal.getsignal(signal.SIGHUP).name)"
            assert (await executor.execute(code)).stdout.text == "SIG_DFL\n"
