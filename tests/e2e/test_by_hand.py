"""Commands that the tutorial and the README tell a person to type work as written."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from executor_service import ExecutorClient
from tests.e2e.conftest import Service, children, fairbox, start, until_gone

TUTORIAL = Path(__file__).parents[2] / "docs" / "tutorials" / "laptop.md"
GRPCURL = shutil.which("grpcurl") or shutil.which("grpcurl", path=str(Path(sys.executable).parent))

needs_grpcurl = pytest.mark.skipif(GRPCURL is None, reason="grpcurl is not installed (pip install -e '.[dev]')")


def tutorial_lines() -> list[str]:
    """The grpcurl calls of the tutorial, in order."""
    return re.findall(r"^grpcurl .*$", TUTORIAL.read_text(), flags=re.MULTILINE)


def call(line: str, service: Service) -> Any:
    """Runs one line of the tutorial against this service's ports and returns the JSON that it prints."""
    assert GRPCURL is not None
    line = line.replace("localhost:50051", service.ports.executor).replace("localhost:50052", service.ports.limiter)
    words = [GRPCURL, *shlex.split(line)[1:]]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True)
    return json.loads(done.stdout)


def filled(line: str, lease: dict[str, Any]) -> str:
    """The line with what the first call has printed."""
    line = line.replace("EPOCH", str(lease["epoch"])).replace("SEQ", str(lease["seq"]))
    return line.replace("SESSION", lease["client_session_id"])


@needs_grpcurl
@pytest.mark.parametrize(
    ("tier", "name"), [("executor", "executor_service.v1.ExecutorService"), ("limiter", "limiter.v1.LimiterService")]
)
def test_grpcurl_lists_both_services(service: Service, tier: str, name: str) -> None:
    assert GRPCURL is not None
    target = getattr(service.ports, tier)
    done = subprocess.run([GRPCURL, "-plaintext", target, "list"], capture_output=True, text=True, timeout=60)
    assert name in done.stdout.splitlines(), done.stderr


@needs_grpcurl
def test_the_three_lines_acquire_execute_and_release(service: Service) -> None:
    acquire, execute, release = tutorial_lines()
    lease = call(acquire, service)["lease"]
    result = call(filled(execute, lease), service)["result"]
    assert (result["outcome"], result["cause"]) == ("OUTCOME_FINISHED", "CAUSE_POLICY")
    assert result["stdout"]["data"] == "NDIK"  # base64 of "42\n"
    # The executor gives the token back when its program has ended; then nothing is left to release.
    deadline = time.monotonic() + 20
    while (answer := call(filled(release, lease), service)) != {}:
        assert answer == {"bound": True}
        assert time.monotonic() < deadline


@needs_grpcurl
def test_unused_leases_are_given_back_by_hand_again_and_again_and_by_several_people(service: Service) -> None:
    acquire, _, release = tutorial_lines()
    for _ in range(2):
        mine, yours = call(acquire, service)["lease"], call(acquire, service)["lease"]
        assert mine != yours
        for lease in (mine, yours):
            assert call(filled(release, lease), service) == {"released": True}


def test_a_program_run_by_hand_behaves_as_if_it_had_run_here(service: Service) -> None:
    code = "import sys; print(sys.stdin.read().upper()); print('oops', file=sys.stderr); sys.exit(7)"
    done = fairbox("exec", "--executor", service.ports.executor, "-c", code, input="hello")
    assert (done.stdout, done.stderr, done.returncode) == ("HELLO\n", "oops\n", 7)


def test_a_program_over_its_time_says_so(service: Service) -> None:
    done = fairbox("exec", "--executor", service.ports.executor, "--timeout", "0.3", "-c", "while True: pass", input="")
    assert done.returncode == 128 + 9
    assert "TIME_LIMIT" in done.stderr


@pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not installed")
def test_a_file_is_compiled_by_its_suffix_and_the_compiler_is_heard(service: Service, tmp_path: Path) -> None:
    source = tmp_path / "hello.c"
    source.write_text('#include <stdio.h>\nint main(void) { puts("hello"); return 3; }')
    done = fairbox("exec", "--executor", service.ports.executor, str(source), input="")
    assert (done.stdout, done.stderr, done.returncode) == ("hello\n", "", 3)
    source.write_text("int main(void) { return nothing; }")
    done = fairbox("exec", "--executor", service.ports.executor, str(source), input="")
    assert (done.stdout, done.returncode) == ("", 1)
    assert "nothing" in done.stderr
    assert "COMPILE_ERROR: Not run: compiling failed." in done.stderr


def test_status_shows_both_tiers(service: Service) -> None:
    done = fairbox("status", f"limiter={service.ports.limiter_admin}", f"executor={service.ports.executor}")
    assert done.returncode == 0, done.stderr
    for expected in ("bucket", "code", "epoch", "isolation", "namespaces", "python"):
        assert expected in done.stdout.lower()


async def test_status_shows_the_sessions_that_live(service: Service) -> None:
    async with ExecutorClient(service.ports.executor) as executor, executor.session(owner="mine") as session:
        words = ("status", "limiter=", f"executor={service.ports.executor}")
        done = await asyncio.to_thread(fairbox, *words)
        assert f"session_id {session.session_id}" in " ".join(done.stdout.split()), done.stdout
        told = json.loads((await asyncio.to_thread(fairbox, *words, "--json")).stdout)
        assert [each["owner"] for each in told["executors"][0]["sessions"]] == ["mine"]


def test_status_of_nothing_is_one_line_each() -> None:
    done = fairbox("status", "limiter=127.0.0.1:1", "executor=127.0.0.1:1", "timeout_s=2")
    assert done.returncode == 1
    assert done.stdout.count("on 127.0.0.1:1 is not available: ") == 2
    assert done.stdout.count("\n") == 2
    assert done.stderr == "fairbox status: `fairbox up` starts limiter and executor on this machine\n"


def test_killing_the_command_ends_everything(tmp_path: Path) -> None:
    running = start(tmp_path, whole=True)
    below = children(running.process.pid)
    running.process.kill()
    running.process.wait()
    until_gone(below)


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["up", "max_in_flght=3"], "max_in_flght (max_in_flght) is not a setting; did you mean max_in_flight?"),
        (["exec", "/nonexistent/file.py"], "/nonexistent/file.py: No such file or directory"),
        (
            ["exec", "--executor", "127.0.0.1:1", "-c", "1"],
            "fairbox exec: executor on 127.0.0.1:1: Connection refused; `fairbox up` starts limiter and executor",
        ),
        (
            ["capture", "engine.kind=sglang", "engine.urls=[http://127.0.0.1:1]"],
            "fairbox capture: http://127.0.0.1:1/model_info: Connection refused; start the server, or set engine.urls",
        ),
        (["rollout", "data=/nonexistent.jsonl"], "/nonexistent.jsonl"),
        (["dance"], "dance"),
    ],
)
def test_what_is_wrong_is_one_sentence(args: list[str], sentence: str) -> None:
    done = fairbox(*args, input="")
    assert done.returncode in (1, 2)
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr
