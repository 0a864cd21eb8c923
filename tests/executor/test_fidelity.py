"""A program can't tell the executor from `python main.py`: each case is run both ways and compared byte for byte.

The plain run uses the same interpreter, the same environment and resource limits, a session of its own and a temporary
folder, whose name is replaced by the sandbox's. Known differences are said beside each case.
"""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from executor_service import ExecutionResult, ExecutorClient, Limits
from tests.executor.fidelity import endings, exits, modules, processes, streams, surroundings
from tests.executor.fidelity.case import Case
from tests.executor.levels import EXTREMES, STRONGEST, Level
from tests.executor.servers import Server

CASES = (
    *(*modules.FILES, *exits.SIGNALS, *endings.SIGNALS),
    *(*streams.CASES, *processes.CASES, *surroundings.CASES),
)
OF_THE_INTERPRETER = (*modules.CASES, *exits.CASES, *endings.CASES)
"""For what an interpreter shows of a program and does at its end: the level has no part in that."""
LIMITS = Limits(wall_time_s=20, cpu_time_s=60, memory_bytes=512 << 20)
_INQUIRY = """
import json, os, resource, sys, importlib.util
limits = {n: resource.getrlimit(getattr(resource, n)) for n in dir(resource) if n.startswith("RLIMIT_")}
packages = [n for n in ("numpy", "pandas", "scipy", "sympy") if importlib.util.find_spec(n)]
print(json.dumps([sys.executable, dict(os.environ), os.getcwd(), limits, packages]))
"""


# Sets what a sandbox sets, and becomes `python main.py`. RLIMIT_NPROC would count every process of this user.
_BEGINNING = """
import json, os, resource, signal, sys
os.umask(0o022)
# What ran the tests may ignore some: nohup, a shell's background.
for number in signal.valid_signals(): number in (9, 19) or signal.signal(number, signal.SIG_DFL)
for name, values in json.loads(sys.argv[1]).items():
    if name != "RLIMIT_NPROC": resource.setrlimit(getattr(resource, name), values)
os.execv(sys.argv[2], [sys.argv[2], "main.py", *sys.argv[3:]])
"""


@dataclass(frozen=True)
class Surroundings:
    """Surroundings of a program, as one program reports them."""

    python: str
    env: dict[str, str]
    folder: str
    limits: dict[str, tuple[int, int]]
    packages: list[str]


@pytest.fixture(scope="module", params=EXTREMES)
def level(request: pytest.FixtureRequest) -> Iterator[tuple[Level, Server]]:
    with request.param.running("max_concurrent=4") as server:
        yield request.param, server


@pytest.fixture(scope="module")
def around(level: tuple[Level, Server]) -> Surroundings:
    async def ask() -> ExecutionResult:
        async with ExecutorClient(level[1].target) as client:
            return await client.execute(_INQUIRY, limits=LIMITS)

    result = asyncio.run(ask())
    assert result.ok, result
    return Surroundings(*json.loads(result.stdout.data))


@pytest.fixture
async def executor(level: tuple[Level, Server]) -> AsyncIterator[ExecutorClient]:
    async with ExecutorClient(level[1].target) as client:
        yield client


def plain(case: Case, around: Surroundings, folder: Path) -> tuple[int, bytes, bytes]:
    """The case as `python main.py`: exit code (negative: signal), stdout, stderr."""
    folder.mkdir()
    for path, content in ((file.path, file.content) for file in case.files):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
    (folder / "main.py").write_bytes(case.source.encode())
    stdin = Path("/dev/null")
    if case.stdin:
        stdin = folder.with_name(folder.name + ".stdin")
        stdin.write_bytes(case.stdin)

    env = {name: value.replace(around.folder, str(folder)) for name, value in around.env.items()}
    with stdin.open("rb") as source:
        done = subprocess.run(
            [around.python, "-I", "-S", "-c", _BEGINNING, json.dumps(around.limits), around.python, *case.args],
            cwd=folder,
            env=env | {name: value.replace(around.folder, str(folder)) for name, value in case.env.items()},
            stdin=source,
            capture_output=True,
            start_new_session=True,
            timeout=60,
        )
    return done.returncode, done.stdout, done.stderr


def comparable(case: Case, code: int, stdout: bytes, stderr: bytes, folder: str) -> dict[str, Any]:
    """Facts that are compared, readable in a failure's report."""

    def clean(data: bytes) -> str:
        # At level landlock each run has a folder with a name of its own.
        data = re.sub(rb"/[^ '\"]*/fairbox-[^/ ]+/[0-9a-f]{32}/work", b"FOLDER", data)
        data = re.sub(rb"/[^ '\"]*/fairbox-[^/ ]+/[0-9a-f]{32}/tmp", b"/tmp", data)
        # A program in an interpreter that was there before it has one frame of ours below its own.
        data = re.sub(rb'  File ".*/bootstrap.py", line \d+,? in <module>\n', b"", data)
        text = re.sub("0x[0-9a-f]{6,}", "ADDRESS", data.decode("utf-8", "backslashreplace")).replace(folder, "FOLDER")
        return re.sub(case.ignore, "", text) if case.ignore else text

    return {"code": code, "stdout": clean(stdout), "stderr": clean(stderr)}


def sandboxed(result: ExecutionResult) -> tuple[int, bytes, bytes]:
    code = -result.signal if result.signal else result.exit_code
    return code, result.stdout.data, result.stderr.data


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
async def test_it_is_as_python_main_py(
    case: Case, level: tuple[Level, Server], around: Surroundings, executor: ExecutorClient, tmp_path: Path
) -> None:
    await compare(case, level[0], around, executor, tmp_path / "work")


@pytest.mark.parametrize("level", STRONGEST, indirect=True, scope="module")
@pytest.mark.parametrize("case", OF_THE_INTERPRETER, ids=lambda case: case.name)
async def test_the_interpreter_is_as_python_main_py(
    case: Case, level: tuple[Level, Server], around: Surroundings, executor: ExecutorClient, tmp_path: Path
) -> None:
    await compare(case, level[0], around, executor, tmp_path / "work")


async def compare(case: Case, level: Level, around: Surroundings, executor: ExecutorClient, folder: Path) -> None:
    if case.needs and case.needs not in around.packages:
        pytest.skip(f"the interpreter of programs has no {case.needs}")
    if case.unlike_landlock and level.name == "landlock":
        pytest.skip(f"differs at this level: {case.unlike_landlock}")
    result = await executor.execute(
        case.source, stdin=case.stdin, args=case.args, files=case.files, env=case.env, limits=LIMITS
    )
    expected = comparable(case, *plain(case, around, folder), folder=str(folder))
    assert comparable(case, *sandboxed(result), folder=around.folder) == expected


FRESH = {
    "hash": "print(hash('a'))",
    "order_of_sets": "print(list({str(i) for i in range(50)}))",
    "random": "import random; print(random.random())",
    "random_sample": "import random; print(random.sample(range(10**6), 3))",
    "secrets": "import secrets; print(secrets.token_hex())",
    "urandom": "import os; print(os.urandom(16))",
    "uuid4": "import uuid; print(uuid.uuid4())",
    "uuid1": "import uuid; print(uuid.uuid1())",
    "temporary_name": "import tempfile; print(tempfile.mktemp())",
    "ssl": "import ssl; print(ssl.RAND_bytes(16))",
    "numpy": "import numpy; print(numpy.random.rand())",
    "numpy_generator": "import numpy; print(numpy.random.default_rng().random())",
    "multiprocessing_key": "import multiprocessing; print(bytes(multiprocessing.current_process().authkey))",
    "children": "import os, random, sys\nif os.fork() == 0: print(random.random()); sys.exit()\nos.wait()",
}


_OF_THE_ZYGOTE = ("hash", "order_of_sets")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            name, marks=pytest.mark.xfail(reason="string hashes are those of the zygote", strict=name == "hash")
        )
        if name in _OF_THE_ZYGOTE
        else name
        for name in FRESH
    ],
)
async def test_what_is_random_differs_between_runs(executor: ExecutorClient, around: Surroundings, name: str) -> None:
    if name.startswith("numpy") and "numpy" not in around.packages:
        pytest.skip("the interpreter of programs has no numpy")
    results = [await executor.execute(FRESH[name], limits=LIMITS) for _ in range(4)]
    assert all(result.ok for result in results), results
    assert len({result.stdout.data for result in results}) > 1


async def test_random_in_parent_and_child_differ(executor: ExecutorClient) -> None:
    code = """
import os, random, sys
if os.fork() == 0: print(random.random()); sys.exit()
os.wait(); print(random.random())
"""
    result = await executor.execute(code, limits=LIMITS)
    assert len(set(result.stdout.text.split())) == 2, result
