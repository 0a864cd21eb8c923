"""Starts real executor servers as child processes, and looks at the host from outside."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from executor_service import ExecutorClient, Outcome, Session
from executor_service.v1 import executor_pb2 as pb
from executor_service.v1 import executor_pb2_grpc
from fairbox.net.ports import free_port

ROOT = Path(__file__).parents[2]
SLOWNESS = float(os.environ.get("FAIRBOX_TEST_SLOWNESS", "1"))
"""Factor by which this machine may be slower than usual; the tests' deadlines are later by the same factor."""
START_WITHIN_S = 180.0
GROUPS = f"/fairbox-tests-{os.getpid()}"
"""Control groups of the servers of this test process are made below this, and swept away when it ends."""


@atexit.register
def _sweep_groups() -> None:
    """Removes the groups of servers that were killed: one of each server, with one of each of its boxes."""
    root = Path(f"/sys/fs/cgroup{GROUPS}")
    for folder in (*root.glob("*/*/*/"), *root.glob("*/*/"), *root.glob("*/"), root):
        with contextlib.suppress(OSError):
            folder.rmdir()


@dataclass(frozen=True)
class Server:
    """A running server."""

    process: subprocess.Popen[str]
    target: str
    health: str

    @property
    def pid(self) -> int:
        return self.process.pid

    def status(self) -> pb.GetStatusResponse:
        with grpc.insecure_channel(self.target) as channel:
            stub = executor_pb2_grpc.ExecutorServiceStub(channel)
            return stub.GetStatus(pb.GetStatusRequest(), timeout=10)

    def answers(self) -> bool:
        with contextlib.suppress(grpc.RpcError):
            return bool(self.status())
        return False

    def readiness(self) -> int | None:
        """Status of the health service; None when it does not answer."""
        with grpc.insecure_channel(self.health) as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            try:
                return int(stub.Check(health_pb2.HealthCheckRequest(service="readiness"), timeout=10).status)
            except grpc.RpcError:
                return None


class Ended(NamedTuple):
    """Exit code and output of a program."""

    code: int
    out: str
    err: str


MODULE = ("-m", "executor_service")


def command(*settings: str, python: str = sys.executable, module: Sequence[str] = MODULE) -> tuple[list[str], str, str]:
    target, health = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
    words = [
        python,
        *module,
        f"listen={target}",
        f"health_listen={health}",
        "metrics_listen=",
        *settings,
    ]
    return words, target, health


_EACH = """
import importlib, json, os, signal, sys, tempfile, traceback
from fairbox.net.service_process import prepare_service
prepare_service()
modules, commands = json.load(sys.stdin)
main = [importlib.import_module(module) for module in modules][0].main
told = []
for words in commands:
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err, open(os.devnull) as nothing:
        pid = os.fork()
        if pid == 0:
            signal.alarm(100)
            for number, file in enumerate((nothing, out, err)): os.dup2(file.fileno(), number)
            sys.argv[1:] = words
            code = 70
            try: code = main()
            except SystemExit as end: code = end.code
            except BaseException: traceback.print_exc()
            for stream in (sys.stdout, sys.stderr): stream.flush()
            os._exit(code)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        for file in (out, err): file.seek(0)
        told.append([code, out.read().decode(), err.read().decode()])
json.dump(told, sys.stdout)
"""


def each_ended(commands: Iterable[Sequence[str]], *modules: str) -> list[Ended]:
    """The ends of programs that are `main` of the first module, each with words of its own and without input. They are
    forks of one interpreter that has imported all of the modules, which is most of what such a program does."""
    asked = json.dumps([modules, [list(words) for words in commands]])
    done = subprocess.run([sys.executable, "-c", _EACH], cwd=ROOT, input=asked, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return [Ended(*each) for each in json.loads(done.stdout)]


def each_refused(settings: Mapping[str, str]) -> list[str]:
    """Starts a server with each of these settings, or with several and spaces between them: it ends with the sentence
    that stands beside them. Returns all that was said."""
    ended = each_ended(
        (command("languages=python", *words.split())[0][3:] for words in settings), "executor_service.__main__"
    )
    for (words, sentence), (code, _, said) in zip(settings.items(), ended, strict=True):
        assert code in (1, 2), (words, said)
        assert sentence in said.splitlines()[-1], (words, said)
        assert "Traceback" not in said, (words, said)
    return [each.err for each in ended]


@contextlib.contextmanager
def running(
    *settings: str,
    prefix: Sequence[str] = (),
    python: str = sys.executable,
    module: Sequence[str] = MODULE,
    env: dict[str, str] | None = None,
    cwd: Path = ROOT,
    ready: bool = True,
) -> Iterator[Server]:
    """A server that is ready, or that answers at least; killed at the end if the test did not end it."""
    words, target, health = command(
        f"cgroups={GROUPS}" if os.geteuid() == 0 else "cgroups=auto", *settings, python=python, module=module
    )
    process = subprocess.Popen([*prefix, *words], cwd=cwd, env=os.environ | (env or {}), text=True)
    server = Server(process, target, health)
    try:
        begun: Callable[[], bool] = (lambda: server.readiness() == 1) if ready else server.answers
        wait_for(lambda: begun() or process.poll() is not None, START_WITHIN_S)
        assert process.poll() is None, f"the server ended with {process.returncode}"
        yield server
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                process.kill()
        process.wait()


def wait_for(what: object, within_s: float = 30.0) -> None:
    """Until `what()` is true; the deadline is generous, because nothing is timed here."""
    assert callable(what)
    deadline = time.monotonic() + within_s * SLOWNESS
    while not what():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


@contextlib.asynccontextmanager
async def overloaded(executor: ExecutorClient, server: Server, hogs: int) -> AsyncIterator[None]:
    """So many busy loops run on a server."""
    calls = [asyncio.create_task(executor.execute("while True: pass", timeout=120)) for _ in range(hogs)]
    try:
        await asyncio.to_thread(wait_for, lambda: server.status().running >= hogs)
        yield
    finally:
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)


def children(pid: int) -> list[int]:
    """Every process below `pid`, zombies too."""
    parents: dict[int, list[int]] = {}
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                parent = int(Path(entry.path, "stat").read_text().rpartition(")")[2].split()[1])
                parents.setdefault(parent, []).append(int(entry.name))
    found, todo = [], [pid]
    while todo:
        below = parents.get(todo.pop(), [])
        found += below
        todo += below
    return found


def idle(server: Server) -> bool:
    """Says whether nothing runs, and only zygotes, inits and waiting workers are there."""
    status = server.status()
    loaded = sum(1 for profile in status.profiles if profile.ready)
    return status.running == 0 and len(children(server.pid)) == 2 * loaded + 2 * sum(p.ready for p in status.profiles)


def parent(pid: int) -> int:
    """0: it is gone."""
    with contextlib.suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return 0


def boxes(server: Server) -> int:
    """Boxes with a worker that waits."""
    return sum(profile.ready for profile in server.status().profiles)


def processes_with(marker: str, below: int | None = None) -> list[int]:
    """Processes of the whole machine, or those below one, whose command line holds `marker`.

    A marker that is not the caller's alone needs `below`: other suites run at the same time.
    """
    found = []
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if marker.encode() in Path(entry.path, "cmdline").read_bytes():
                    found.append(int(entry.name))
    return found if below is None else sorted({*found} & {*children(below)})


def marked() -> tuple[str, list[str]]:
    """A marker, and arguments that put it into a program's command line."""
    marker = f"marker-{uuid.uuid4().hex}"
    return marker, [marker]


def held() -> tuple[str, str]:
    """A marker, and a program that prints `begun`, and `done` when `let_go` ends what it waits for."""
    marker = f"600.{uuid.uuid4().int}"
    wait = f"import subprocess; print('begun', flush=True); subprocess.run(['sleep', '{marker}']); print('done')"
    return marker, wait


def let_go(marker: str) -> None:
    """Ends what a program of `held` waits for, once it is there."""
    wait_for(lambda: processes_with(marker))
    for pid in processes_with(marker):
        os.kill(pid, signal.SIGKILL)


def descriptors(pid: int) -> list[str]:
    """Targets of a process's descriptors, sorted."""
    found = []
    for entry in os.scandir(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):
            found.append(str(Path(entry.path).readlink()))
    return sorted(found)


def environment(pid: int) -> bytes:
    return Path(f"/proc/{pid}/environ").read_bytes()


def owner(pid: int) -> int:
    """Uid of a process."""
    return Path(f"/proc/{pid}").stat().st_uid


def exists(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def sandbox_mounts(pid: int) -> list[str]:
    """Mounts of sandboxes that a process can see."""
    mounts = Path(f"/proc/{pid}/mounts").read_text().splitlines()
    return [line for line in mounts if "subset=pid" in line or "/.private" in line]


def groups_left(pid: int) -> list[str]:
    """Control groups of runs of a server."""
    return [str(path) for path in _groups(f"/fairbox-{pid}/box-*/")]


def server_groups_left(pid: int) -> list[str]:
    """Control groups of a server itself."""
    return [str(path) for path in _groups(f"/fairbox-{pid}")]


def _groups(below: str) -> list[Path]:
    """Root's servers have them below GROUPS; those of an ordinary user have them below its own."""
    return [*Path("/sys/fs/cgroup").glob(("**" if os.geteuid() != 0 else GROUPS.strip("/")) + below)]


async def said(session: Session, command: str, **options: Any) -> str:
    """Output of a cell or command that succeeds."""
    result = await session.run(command, **options)
    assert result.outcome is Outcome.FINISHED, (result, result.stdout.text, result.stderr.text)
    return result.stdout.text
