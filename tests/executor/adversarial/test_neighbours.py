"""Traces that a program finds of the programs beside it and of those before it."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from executor_service import ExecutorClient, InputFile, Program
from tests.executor.adversarial.attempts import LONG, possible, printed
from tests.executor.adversarial.conftest import IMAGE
from tests.executor.levels import Level
from tests.executor.servers import Server, children


def image_of(level: Level) -> str:
    """Image of programs that are streamed."""
    return IMAGE if level.image else ""


LEAVE = """
import mmap
def quietly(what):
    try: what()
    except OSError: pass
for folder in ("/tmp", "/dev/shm", ".", "/var/tmp", "/run/lock"):
    quietly(lambda: open(f"{folder}/left-behind", "w").write("x"))
    quietly(lambda: os.symlink("/etc/passwd", f"{folder}/left-link"))
quietly(lambda: call("shmget", 4711, 4096, 0o1666))
quietly(lambda: call("semget", 4711, 1, 0o1666))
quietly(lambda: call("msgget", 4711, 0o1666))
quietly(lambda: call("mq_open", b"/left", 0o102, 0o666, 0))
quietly(lambda: call(248, b"user", b"left", b"x", 1, -4))
try:
    s = socket.socket(socket.AF_INET); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    s.bind(("127.0.0.1", 4711)); s.listen(); c = socket.create_connection(("127.0.0.1", 4711)); a, _ = s.accept()
    a.close(); c.close()
    u = socket.socket(socket.AF_UNIX); u.bind("\\0left-behind"); u.listen()
except OSError: pass
os.umask(0); os.nice(5)
quietly(lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (30, 30)))
quietly(lambda: os.sched_setaffinity(0, [0]))
libc.prctl(15, b"left-name", 0, 0, 0)
quietly(lambda: call("personality", 0x0040000))
signal.setitimer(signal.ITIMER_REAL, 1000)
if os.fork() == 0: os.setsid(); time.sleep(98765.4321)
print("left")
"""
LOOK = """
import glob
print(sorted(glob.glob("/tmp/left*") + glob.glob("/dev/shm/*") + glob.glob("left*") + glob.glob("/var/tmp/left*")))
for name in ("shmget", "semget", "msgget"):
    try: call(name, 4711, 0, 0); print("found", name)
    except OSError: pass
try: call("mq_open", b"/left", 0); print("found a queue")
except OSError: pass
try: s = socket.socket(socket.AF_INET); s.bind(("127.0.0.1", 4711)); s.listen()  # neither bound nor in TIME_WAIT
except OSError as error: print("port", error.strerror) if error.errno == errno.EADDRINUSE else None
try: socket.socket(socket.AF_UNIX).connect("\\0left-behind"); print("found a socket")
except OSError: pass
old = os.umask(0o22)
print(oct(old), os.getpriority(0, 0), resource.getrlimit(resource.RLIMIT_NOFILE), len(os.sched_getaffinity(0)))
print(signal.getitimer(signal.ITIMER_REAL), signal.alarm(0))
name = ctypes.create_string_buffer(16); libc.prctl(16, name, 0, 0, 0); print(name.value)
"""


async def test_nothing_is_left_by_the_run_before(executor: ExecutorClient) -> None:
    clean = await printed(executor, LOOK)
    for _ in range(6):  # more than there are slots: each is used again
        assert await printed(executor, LEAVE) == "left\n"
        found = await printed(executor, LOOK)
        assert found == clean
        assert found.startswith("[]\n0o22 ")


REMNANTS = """
import gc
words = [bytes.fromhex(word) for word in sys.argv[1:]]
for thing in gc.get_objects():
    if isinstance(thing, dict) and thing is not globals():
        for value in list(thing.values()):
            data = value.encode("utf-8", "replace") if isinstance(value, str) else value
            if not isinstance(data, bytes): continue
            for word in words:
                if data.startswith(word): print("object", word[:8])
for line in open("/proc/self/maps"):
    ends, rights = line.split()[:2]
    start, end = (int(word, 16) for word in ends.split("-"))
    if "r" not in rights or "[v" in line: continue
    with open("/proc/self/mem", "rb", 0) as memory:
        memory.seek(start)
        try: data = memory.read(end - start)
        except OSError: continue
    for word in words:
        at = data.find(word + b"-remnant")
        if at >= 0: print("memory", word[:8], line.split()[-1])
"""


async def test_no_trace_of_the_run_before_is_in_memory(executor: ExecutorClient, level: Level) -> None:
    """Its code, input, files, paths, arguments, environment and output: each carries a word of its own."""
    if level.landlock:
        pytest.skip("memory is looked through by way of /proc, which this level does not have")
    names = ("code", "stdin", "file", "path", "argument", "variable", "output", "returned")
    words = [f"zq{name}{number:08x}" for number, name in enumerate(names)]
    code, stdin, file, path, argument, variable, output, returned = (f"{word}-remnant" for word in words)
    for _ in range(4):
        await executor.execute(
            f"x = '{code}'; print(input(), open('{path}').read())\nopen('{returned}', 'w').write(x)",
            stdin=stdin.encode(),
            files=[InputFile(path, file.encode())],
            args=[argument],
            env={"VARIABLE": variable},
            return_paths=[returned],
        )
        await executor.execute(f"print('{output}' * 100)")
        # The words arrive in another spelling, so that they are not found in the search itself.
        text = await printed(executor, REMNANTS, args=[word.encode().hex() for word in words])
        assert text == ""


MEET = """
import glob
print("here", flush=True)
listener = None
try:
    listener = socket.socket(socket.AF_UNIX); listener.bind("\\0meeting"); listener.listen()
    server = socket.socket(); server.bind(("127.0.0.1", 4712)); server.listen()
except OSError as error:
    if error.errno == errno.EADDRINUSE: print("somebody has the address")
for name in ("shmget", "semget"):
    args = (4712, 1, 0o3666) if name == "semget" else (4712, 4096, 0o3666)
    try: call(name, *args)
    except OSError as error:
        if error.errno == errno.EEXIST: print("shared", name)
try:
    lock = open(sys.executable); fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    fcntl.fcntl(lock, fcntl.F_SETLEASE, fcntl.F_RDLCK)
except OSError as error: pass
time.sleep(1)
me = os.getpid()
# Those that began at the same moment, and the first.
for pid in {*range(2, 1000), *range(max(2, me - 2000), me + 2000)} - {me, os.getppid()}:
    try: os.kill(pid, 0); print("reached", pid)
    except ProcessLookupError: pass
    except PermissionError: pass
for entry in glob.glob("/proc/[0-9]*"):
    pid = int(entry.rpartition("/")[2])
    if pid not in (1, me): print("saw", pid)
"""


async def test_programs_of_the_same_moment_do_not_meet(executor: ExecutorClient) -> None:
    texts = await asyncio.gather(*(printed(executor, MEET, limits=LONG) for _ in range(2)))
    assert texts == ["here\n", "here\n"]


@pytest.mark.xfail(reason="files of the host are shared, and so are their locks", strict=True)
async def test_a_lock_of_a_file_that_all_can_read_is_not_a_channel(executor: ExecutorClient, level: Level) -> None:
    hold = "import fcntl, time\nheld = open('/usr/bin/env'); fcntl.flock(held, fcntl.LOCK_EX)\n"
    hold += "print('held', flush=True); time.sleep(600)"
    look = "attempt('lock', lambda: fcntl.flock(open('/usr/bin/env'), fcntl.LOCK_EX | fcntl.LOCK_NB))"
    holder = Program(code=hold, image=image_of(level))
    async with contextlib.aclosing(executor.stream(holder)) as said:
        await anext(said)
        seen = await possible(executor, look)
    assert seen == {"lock"}


async def test_siblings_can_not_be_traced_signalled_or_slowed(
    executor: ExecutorClient, level: Level, server: Server
) -> None:
    code = """
# By low numbers where it may have a namespace, and by those of the host.
others = {*range(2, 300), *map(int, sys.argv[1:])} - {os.getpid(), os.getppid()}
def any_of(what):
    def attempts():
        for pid in others:
            try: what(pid); return
            except OSError: pass
        raise OSError("none")
    return attempts
attempt("signal", any_of(lambda pid: os.kill(pid, signal.SIGCONT)))
attempt("group", any_of(lambda pid: os.killpg(pid, signal.SIGCONT)))
attempt("priority", any_of(lambda pid: os.setpriority(os.PRIO_PROCESS, pid, 19)))
attempt("affinity", any_of(lambda pid: os.sched_setaffinity(pid, [0])))
attempt("limits", any_of(lambda pid: resource.prlimit(pid, resource.RLIMIT_CPU)))
attempt("trace", any_of(lambda pid: call("ptrace", 16, pid, 0, 0)))
attempt("priority_of_user", lambda: os.setpriority(os.PRIO_USER, 12345, 19))
"""
    sleeper = Program(code="import time; print('here', flush=True); time.sleep(600)", image=image_of(level))
    async with contextlib.aclosing(executor.stream(sleeper)) as said:
        await anext(said)
        pids = [str(pid) for pid in children(server.pid)]
        done = await possible(executor, code, args=pids, limits=LONG)
    assert done == set()


async def test_each_run_has_a_process_list_of_its_own(executor: ExecutorClient, level: Level) -> None:
    if level.landlock:
        pytest.skip("there is no /proc")
    texts = await asyncio.gather(*(printed(executor, "time.sleep(0.5); print(os.listdir('/proc'))") for _ in range(2)))
    for text in texts:
        assert sum(word.strip("[],' \n").isdigit() for word in text.split()) == 2
