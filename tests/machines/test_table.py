"""Each place of the table, asked eight questions: every answer is "yes" or the sentence that a user gets."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from executor_service import ExecutorClient, Limits, Outcome
from executor_service.guest.walls import landlock
from executor_service.v1 import executor_pb2 as pb
from tests.executor.levels import ENV, PYTHON, Level
from tests.executor.servers import ROOT, SLOWNESS, Server, command
from tests.machines.page import ROWS
from tests.machines.places import Place, folder, places

pytestmark = [pytest.mark.machines, pytest.mark.timeout(1500)]
MIB = 1 << 20
MEMORY = "parts = []\nwhile True: parts.append(bytearray(8 << 20))"
FORKS = "import os, time\nwhile True:\n    if os.fork() == 0: time.sleep(60)"
DISK = """
import os
written = 0
try:
    for number in range(40):
        with open(f"f{number}", "wb") as file:
            written += file.write(bytes(4 << 20))
except OSError as error:
    print(error.strerror)
print(written >> 20)
"""
SUITES = {
    "escape suite": [f"tests/executor/adversarial/test_{name}.py" for name in ("escape", "signals", "neighbours")],
    "sessions": [f"tests/executor/sessions/test_{name}.py" for name in ("cells", "sessions")],
}
_LEAST = 20
"""Tests of a suite that have to pass: one that runs none says nothing."""
ONLY_EACH_FILE = "each file; all together by the size of `scratch`"


def row(place: Place, answers: dict[str, str]) -> None:
    ROWS.mkdir(parents=True, exist_ok=True)
    (ROWS / f"{place.name}.json").write_text(json.dumps({"what": place.what, **answers}))


def suite(place: Place, *files: str) -> str:
    """ "yes" if tests of levels pass with a server there; else how they end."""
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *files]
    done = subprocess.run(
        words,
        cwd=ROOT,
        env=os.environ | {"FAIRBOX_TEST_PLACE": place.name},
        capture_output=True,
        text=True,
        timeout=1200 * SLOWNESS,
    )
    passed = re.search(r"(\d+) passed", done.stdout)
    return "yes" if done.returncode == 0 and passed and int(passed[1]) >= _LEAST else done.stdout[-4000:]


async def bombs(server: Server, landlock: bool) -> dict[str, str]:
    async with ExecutorClient(server.target) as executor:
        neighbour = asyncio.create_task(executor.execute("import time; time.sleep(2); print('fine')"))
        limits = Limits(wall_time_s=30, memory_bytes=128 * MIB, processes=32, disk_bytes=32 * MIB, file_bytes=8 * MIB)
        answers = {}
        for name, code, wanted in (
            ("memory bomb", MEMORY, Outcome.MEMORY_LIMIT),
            ("fork bomb", FORKS, Outcome.PROCESS_LIMIT),
        ):
            result = await executor.execute(code, limits=limits)
            answers[name] = "yes" if result.outcome is wanted else str(result)
        disk = await executor.execute(DISK, limits=limits)
        giant = await executor.execute("open('x', 'wb').write(bytes(9 << 20))", limits=limits)
        lines = disk.stdout.text.split("\n")
        held = lines[0] == "No space left on device" and int(lines[1]) < 40
        each = giant.outcome is not Outcome.FINISHED
        answers["disk bomb"] = "yes" if held and each else ONLY_EACH_FILE if landlock and each else str((disk, giant))
        assert (await neighbour).stdout.text == "fine\n"
        return answers


def made(place: Place) -> str:
    """Does what `make run` does, except for its installation: "yes" if programs of trajectories ran there."""
    own = place.user or place.container
    env = (ENV if own else {}) | {"EXECUTOR_PYTHON": PYTHON or ""}
    if place.level == "landlock":
        env["EXECUTOR_MIN_ISOLATION"] = "landlock"
    with tempfile.TemporaryDirectory() as out:
        Path(out).chmod(0o777)
        # What one user has fetched is no other's.
        env |= {"HOME": "/tmp", "FAIRBOX_CACHE": "/tmp/cache" if place.container else f"{out}/cache"}
        words = [PYTHON if own and PYTHON else sys.executable, "-m", "rollout.cli", "rollout", "--up", "n=2"]
        dump = "/tmp/out" if place.container else out
        done = subprocess.run(
            [*place.prefix(env), *words, f"out={dump}"],
            cwd=ROOT,
            env=os.environ | env | conf(),
            capture_output=True,
            text=True,
            timeout=600 * SLOWNESS,
        )
    worked = done.returncode == 0 and "tool calls" in done.stdout and " 0 failed" in done.stdout
    return "yes" if worked else last(done.stderr)


def conf() -> dict[str, str]:
    return {"CONTAINERS_CONF": str(folder() / "containers.conf")}


def last(text: str) -> str:
    return next((line for line in reversed(text.splitlines()) if line.strip()), "nothing was said")


def refused(place: Place) -> str:
    """The sentence with which the server ends where it can't start."""
    env = ENV if place.user or place.container else {}
    words, _, _ = command("cgroups=none", f"python={PYTHON}", python=PYTHON or sys.executable)
    done = subprocess.run(
        [*place.prefix(env), *words],
        cwd=ROOT,
        env=os.environ | env | conf(),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode != 0
    return last(done.stderr)


@pytest.mark.parametrize("place", places(), ids=lambda place: place.name)
async def test_every_answer_is_yes_or_a_sentence(place: Place) -> None:
    if why := place.lacks():
        pytest.skip(why)
    if not place.level:
        sentence = await asyncio.to_thread(refused, place)
        row(place, {"starts": sentence})
        assert place.said in sentence
        return
    level = Level(place.level, "user" if place.user else "root", place.version or landlock.NEWEST, place)
    with level.running("max_concurrent=4") as server:
        answers = {"starts": "yes", "level": place.level, **await bombs(server, level.landlock)}
        shown = {each.level: each for each in server.status().isolation_levels}
        assert server.status().isolation_level == getattr(pb, f"ISOLATION_LEVEL_{place.level.upper()}")
        if level.landlock:
            assert shown[pb.ISOLATION_LEVEL_LANDLOCK].landlock_version == min(level.version, landlock.abi())
    for question, files in SUITES.items():
        answers[question] = await asyncio.to_thread(suite, place, *files)
    answers["make run"] = await asyncio.to_thread(made, place)
    row(place, answers)
    assert {answer for answer in answers.values() if answer not in ("yes", place.level)} <= {ONLY_EACH_FILE}
