"""Signals of programs: what they may send as ever, and that nobody else gets any, whatever the kernel knows of that."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from executor_service import ExecutorClient, Limits, Outcome
from tests.executor.adversarial.attempts import possible, printed
from tests.executor.levels import PREFIX, Level


@pytest.fixture
def victim(level: Level) -> Iterator[subprocess.Popen[bytes]]:
    """A process of the server's user, with a group of its own."""
    prefix = PREFIX if level.who == "user" and os.geteuid() == 0 else []
    process = subprocess.Popen([*prefix, "sleep", "600"], start_new_session=True)
    time.sleep(0.2)
    yield process
    process.kill()
    process.wait()


async def test_a_process_of_the_same_user_gets_none(
    executor: ExecutorClient, level: Level, victim: subprocess.Popen[bytes]
) -> None:
    code = f"""
victim = {victim.pid}
attempt("kill", lambda: os.kill(victim, 9))
attempt("look", lambda: os.kill(victim, 0))
attempt("group", lambda: os.killpg(victim, 9))
attempt("thread", lambda: call(200, victim, 9))
attempt("thread-of-group", lambda: call(234, victim, victim, 9))
attempt("queued", lambda: call("sigqueue", victim, 9, 0))
attempt("pidfd", lambda: signal.pidfd_send_signal(os.pidfd_open(victim), 9))
for number in (9, 15):
    try:
        read, write = os.pipe()
        fcntl.fcntl(read, fcntl.F_SETOWN, victim)
        fcntl.fcntl(read, 10, number)  # F_SETSIG
        fcntl.fcntl(read, fcntl.F_SETFL, os.O_ASYNC)
        os.write(write, b"x")
    except OSError: pass
try: os.kill(-1, 9)
except OSError: pass
"""
    # By these numbers a program in a namespace may know processes of its own.
    assert not level.landlock or await possible(executor, code) == set()
    if not level.landlock:
        await executor.execute(code)
    assert victim.poll() is None


OWN = """
import ctypes, subprocess, threading
got = []
signal.signal(signal.SIGUSR1, lambda number, _: got.append(number))
os.kill(os.getpid(), signal.SIGUSR1)
signal.raise_signal(signal.SIGUSR1)
signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)
call("sigqueue", os.getpid(), 10, 7)
call(200, threading.get_native_id(), 10)
signal.pidfd_send_signal(os.pidfd_open(os.getpid()), 10)
print(len(got))

def child(**options): return subprocess.Popen(["sleep", "60"], **options)
one = child(); one.terminate(); print(one.wait())
one = child(); signal.pidfd_send_signal(os.pidfd_open(one.pid), 9); print(one.wait())
one = child(); os.kill(one.pid, signal.SIGSTOP); os.kill(one.pid, signal.SIGCONT); one.kill(); print(one.wait())
group = subprocess.Popen(["sh", "-c", "sleep 60 & sleep 60; :"], start_new_session=True)
time.sleep(0.3); os.killpg(group.pid, 15); print(group.wait())
mine = subprocess.Popen([sys.executable, "-c", "import os, signal, time; signal.signal(10, signal.SIG_IGN); "
                         "os.setpgid(0, 0); p = os.fork(); p or time.sleep(60); time.sleep(0.3); os.kill(0, 10); "
                         "print('all', os.kill(p, 0)); os.kill(p, 9)"], stdout=-1)
print(mine.communicate()[0].decode().strip())
print(subprocess.run([sys.executable, "-c", "import os; os.abort()"]).returncode)
print(subprocess.run(["timeout", "0.3", "sleep", "9"]).returncode)
print(subprocess.run(["bash", "-c", "trap 'echo trapped' USR1; kill -USR1 $$; sleep 30 & kill %1; wait; echo $?"],
                     stdout=-1).stdout)
for what in (lambda: os.kill(one.pid, 0), lambda: os.kill(os.getpid(), 65), lambda: os.killpg(one.pid, 9)):
    try: what()
    except OSError as error: print(error.strerror)
"""


async def test_own_processes_get_them_as_ever(executor: ExecutorClient) -> None:
    lines = (await printed(executor, OWN)).splitlines()
    assert lines == [
        "6",
        *("-15", "-9", "-9", "-15"),
        "all None",
        "-6",
        "124",
        "b'trapped\\n0\\n'",
        *("No such process", "Invalid argument", "No such process"),
    ]


async def test_a_flood_of_signals_moves_no_deadline(executor: ExecutorClient) -> None:
    code = "import os, threading\ndef flood():\n    while True: os.kill(os.getpid(), 0); os.kill(0, 0)\n"
    code += "for _ in range(8): threading.Thread(target=flood).start()"
    result = await executor.execute(code, limits=Limits(wall_time_s=1))
    assert result.outcome in (Outcome.TIME_LIMIT, Outcome.CPU_LIMIT), result
    assert result.wall_time_s < 20


@pytest.fixture
def everybodys() -> Iterator[Path]:
    """A file that every user may write."""
    with tempfile.TemporaryDirectory(prefix="fairbox-tests-") as folder:
        file = Path(folder, "file")
        file.write_text("x")
        file.chmod(0o666)
        Path(folder).chmod(0o777)
        yield file


async def test_files_that_everybody_may_write_are_not_cut(executor: ExecutorClient, everybodys: Path) -> None:
    code = f"""
path = {str(everybodys)!r}
attempt("truncate", lambda: os.truncate(path, 0))
for mode in (os.O_RDONLY, os.O_WRONLY, os.O_RDWR, 3):
    try: os.close(os.open(path, mode | os.O_TRUNC))
    except OSError: pass
"""
    assert await possible(executor, code) == set()
    assert everybodys.stat().st_size == 1  # noqa: ASYNC240 - nothing waits for it


async def test_own_files_are_cut_as_ever(executor: ExecutorClient) -> None:
    code = """
open("x", "w").write("text")
with open("x", "r+") as file: file.truncate(2)
print(open("x").read())
print(os.path.getsize("x"), end=" ")
open("x", "w").close()
print(os.path.getsize("x"))
"""
    assert await printed(executor, code) == "te\n2 0\n"
