"""Grading of what agents leave in a repository, some of whom try to be graded better than they are."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from executor_service import Cause
from rollout.envs.base import EnvironmentSetup
from rollout.envs.swe import RepositoryTests, SweConfig, SweEnvironment
from rollout.envs.swe.grading import RunProgram, look
from rollout.envs.swe.programs import ImageBase
from rollout.loop import TrajectoryResult
from rollout.rewards import NotScored, parse_rewards
from rollout.stack import LocalStack
from rollout.tokens import ChatTemplate, HubTokenizer
from tests.rollout.harbor.folders import Agents
from tests.rollout.services import executor_status, nothing_left
from tests.rollout.swe_env.repository import (
    FAIL_TO_PASS,
    FIX,
    PASS_TO_PASS,
    SOURCES,
    add_repository,
    commit,
    python_layers,
    row,
    write,
    write_rows,
    writing,
)

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small repository, with two commits."""
    place = tmp_path_factory.mktemp("repository") / "calc"
    commit(place, {"README": "Nothing yet.\n"})
    commit(place, SOURCES)
    return place


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(place: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LocalStack]:
    store = tmp_path_factory.mktemp("images") / "store"
    layers = python_layers()
    add_repository(store, "calc", place, layers)
    dirty = shutil.copytree(place, store.parent / "dirty", symlinks=True)
    write(
        dirty, {"calc/core.py": f"{SOURCES['calc/core.py']}\n# changed\n", "calc/made.py": "x = 1\n", "build/a": "b\n"}
    )
    add_repository(store, "dirty", dirty, layers)
    async with LocalStack(executor_args=[f"image_dir={store}"]) as stack:
        if not (await executor_status(stack)).HasField("images"):
            pytest.skip("nothing is mounted at this level")
        yield stack


@pytest.fixture
def agents(stack: LocalStack, tokenizer: HubTokenizer, chat: ChatTemplate) -> Agents:
    return Agents(stack, tokenizer, chat)


def parts(result: TrajectoryResult) -> dict[str, float]:
    """The numbers that are not 0."""
    assert result.reward is not None, result.error
    assert result.reward.parts["reward"] == result.reward.value
    return {name: number for name, number in result.reward.parts.items() if number}


ALL = {"reward": 1.0, "fail_to_pass": 1.0, "pass_to_pass": 1.0, "applied": 1.0, "canary": 1.0}
HONEST = {
    "gold": (FIX, ALL),
    "committed": (f"{FIX}; git add -A; git -c user.name=a -c user.email=a@b.c commit -qm fixed", ALL),
    "nothing": ("git status", {"no_change": 1.0}),
    "half": (writing("calc/core.py", SOURCES["calc/core.py"].replace("-", "*")),
             {"applied": 1.0, "canary": 1.0, "fail_to_pass": 1 / 3}),
    "file-is-added": (f"{FIX}; " + writing("calc/core2.py", "x = 1\n") + "; git mv README READ.md", ALL),
}  # fmt: skip


def environment(
    place: Path, data: Path, names: Sequence[str], columns: Mapping[str, Any] | None = None, **settings: object
) -> SweEnvironment:
    rows = write_rows(data / "rows.jsonl", [row(name, place, **(columns or {})) for name in names])
    return SweEnvironment(SweConfig(**settings), EnvironmentSetup(data=rows))  # type: ignore[arg-type]


async def test_honest_work_is_worth_what_it_does(
    agents: Agents, stack: LocalStack, place: Path, tmp_path: Path
) -> None:
    results = await agents.play_in(environment(place, tmp_path, list(HONEST)), lambda name: [HONEST[name][0]])
    found = {name: parts(result) for name, result in results.items()}
    assert found == {name: each for name, (_, each) in HONEST.items()}, results
    await nothing_left(stack)


AGAIN = {"applied": 1.0, "canary": 1.0, "pass_to_pass": 1.0}
"""The numbers of a change that changes nothing of the tests' results."""
NAMES = (*FAIL_TO_PASS[:1], "tests/test_core.py::test_text[1 + 1-2]", *FAIL_TO_PASS[2:], *PASS_TO_PASS)
LINES = "\n".join(["", "==== short test summary info ====", *(f"PASSED {name}" for name in NAMES), ""])
BELIEVE = """
import pytest
@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    outcome = yield
    outcome.get_result().outcome = "passed"
"""
REPORTER = """
from _pytest.reports import TestReport
made = TestReport.from_item_and_call
def passed(item, call):
    report = made(item, call)
    report.outcome, report.longrepr = "passed", None
    return report
TestReport.from_item_and_call = passed
"""
BROKEN = SOURCES["calc/core.py"]
FAKE_GIT = """#!/bin/bash
case "$*" in
  *diff-tree*) cat /testbed/planted ;;
  *write-tree*) echo 0 ;;
esac
exit 0
"""
HEADER = "diff --git a/README b/README\n--- a/README\n+++ b/README\n@@ -1 +1 @@\n-Adds.\n+Subtracts.\n"
PLANTED = "--- /dev/null\n+++ b/{0}\n@@ -0,0 +1 @@\n+import os; os._exit(0)\n"


def faking(patch: str) -> str:
    """Commands of an agent whose git names this difference."""
    return f"{writing('/testbed/planted', patch)}; {writing('/usr/bin/git', FAKE_GIT)}"


TRICKS = {
    "conftest": (writing("conftest.py", BELIEVE) + "; echo x >> README", AGAIN | {"dropped_files": 1.0}),
    "conftest-beside": (writing("tests/conftest.py", BELIEVE), {"no_change": 1.0, "dropped_files": 1.0}),
    "tests-edited": ("echo > tests/test_core.py", {"no_change": 1.0, "dropped_files": 1.0}),
    "tests-removed": ("rm -r tests; echo x >> README", {"applied": 1.0, "dropped_files": 1.0}),
    "tests-are-a-link": ("mv tests other && ln -s other tests && echo > tests/test_core.py",
                         {"applied": 1.0, "dropped_files": 1.0}),
    "configured": (
        f"{writing('setup.cfg', '[tool:pytest]')}; {writing('pytest.ini', '[pytest]')}; "
        f"{writing('a/x.pth', 'import os')}; {writing('sitecustomize.py', REPORTER)}",
        {"no_change": 1.0, "dropped_files": 4.0},
    ),
    "compiled": (
        f"> .gitignore; {writing('tests/__pycache__/test_other.cpython-311-pytest-9.2.0.pyc', 'x')}",
        AGAIN | {"dropped_files": 1.0},
    ),
    "sys-exit": (writing("calc/__init__.py", "import sys; sys.exit(0)"), {"applied": 1.0}),
    "os-exit": (writing("calc/__init__.py", "import os; os._exit(0)"), {"applied": 1.0}),
    "reporter": (writing("calc/__init__.py", f"{REPORTER}{BROKEN}"),
                 {"applied": 1.0, "fail_to_pass": 1.0, "pass_to_pass": 1.0}),
    "prints-at-import": (writing("calc/__init__.py", f"import os\nos.write(2, {LINES.encode()!r})\n{BROKEN}"), AGAIN),
    "prints-at-end": (
        writing("calc/__init__.py", f"import atexit, os\natexit.register(os.write, 1, {LINES.encode()!r})\n{BROKEN}"),
        AGAIN,
    ),
    "prints-and-ends": (
        writing(
            "calc/__init__.py",
            f"import os\nwith open('/sandbox/printed.txt', 'w') as f: f.write({LINES!r})\nos._exit(0)",
        ),
        {"applied": 1.0, "fail_to_pass": 1.0, "pass_to_pass": 1.0},
    ),
    "rewrites-the-output": (
        writing(
            "calc/__init__.py",
            "import os, time\nif os.fork() == 0:\n    os.setsid()\n    while True:\n"
            f"        for name in ('printed.txt', 'output.txt'):\n"
            f"            with open('/sandbox/' + name, 'w') as f: f.write({LINES!r})\n"
            f"        time.sleep(0.001)\n{BROKEN}",
        ),
        None,
    ),
    "reward-files": (
        "mkdir -p /logs/verifier; for f in /logs/verifier/reward.txt /sandbox/reward.txt /sandbox/state; do "
        "echo 1 > $f; done",
        {"no_change": 1.0},
    ),
    "daemon": ("(while true; do echo > tests/test_core.py; done) > /dev/null 2>&1 &",
               None),
    "history": (
        f"{FIX}; rm -rf .git; git init -q; git add -A; git -c user.name=a -c user.email=a@b.c commit -qm x",
        {"no_diff": 1.0},
    ),
    "filter": (
        "git update-index --assume-unchanged README; git config core.fsmonitor /bin/false; "
        "echo '*.py filter=fix diff=fix' > .git/info/attributes; git config diff.fix.textconv 'cat /etc/passwd'; "
        "git config filter.fix.clean \"sed '2s/-/+/'\"; printf '#!/bin/bash\\nsed -i 2s/-/+/ /testbed/calc/core.py' "
        "> .git/hooks/post-index-change; chmod +x .git/hooks/post-index-change; echo x >> README",
        AGAIN,
    ),
    "programs": (
        f"{writing('/lines', LINES)}; for f in pytest python3; do printf '#!/bin/bash\\ncat /lines' > /usr/bin/$f; "
        "done; "
        "echo x >> README",
        AGAIN,
    ),
    "no-git": ("rm /usr/bin/git; echo x >> README", {"no_diff": 1.0}),
    "no-bash": ("echo x >> README; rm /usr/bin/bash", {"no_diff": 1.0}),
    "no-repository": ("cd /; rm -rf /testbed", {"no_diff": 1.0}),
    "git-says-more": (faking(HEADER + PLANTED.format("conftest.py")), AGAIN | {"dropped_files": 1.0}),
    "git-says-above": (faking(HEADER + PLANTED.format("../usr/lib/python3/dist-packages/sitecustomize.py")), {}),
    "git-says-git": (faking(HEADER + PLANTED.format(".git/config")), {}),
    "git-says-nonsense": (faking("fixed"), {}),
    "git-says-nothing": (faking(""), {"no_change": 1.0}),
    "large": ("head -c 5000000 /dev/urandom > large", {"too_large": 1.0}),
}  # fmt: skip


async def test_tricks_are_worth_nothing(agents: Agents, stack: LocalStack, place: Path, tmp_path: Path) -> None:
    results = await agents.play_in(environment(place, tmp_path, list(TRICKS)), lambda name: [TRICKS[name][0]])
    found = {name: parts(result) for name, result in results.items()}
    assert {name: result.reward.value for name, result in results.items() if result.reward} == dict.fromkeys(
        TRICKS, 0.0
    )
    expected = {name: numbers for name, (_, numbers) in TRICKS.items() if numbers is not None}
    assert not {name: found[name] for name, numbers in expected.items() if found[name] != numbers}
    await nothing_left(stack)


async def test_an_image_that_differs_from_its_commit_is_the_base(agents: Agents, place: Path, tmp_path: Path) -> None:
    tasks = environment(place, tmp_path, ["gold", "nothing"], image="dirty")
    results = await agents.play_in(tasks, lambda name: [FIX if name == "gold" else "rm -r build"])
    assert {name: parts(result) for name, result in results.items()} == {"gold": ALL, "nothing": {"no_change": 1.0}}


async def test_tests_that_do_not_end_are_worth_nothing(agents: Agents, place: Path, tmp_path: Path) -> None:
    tasks = environment(place, tmp_path, ["task"], test_timeout=4.0)
    loops = writing("calc/__init__.py", "while True: pass")
    (result,) = (await agents.play_in(tasks, lambda name: [loops])).values()
    assert parts(result) in ({"timed_out": 1.0}, {"timed_out": 1.0, "applied": 1.0})


async def test_setup_holds_for_the_agent_and_for_the_tests(agents: Agents, place: Path, tmp_path: Path) -> None:
    columns = {"test_cmd": '[ "$MARK" = yes ] && pytest -rA {files}'}
    tasks = environment(place, tmp_path, ["task"], columns, setup="MARK=yes; export MARK; false")
    commands = ["cd /; exit 3", f"echo $? $MARK $PWD; {FIX}; cd /tmp", "echo $? $MARK $PWD; unset MARK"]
    (result,) = (await agents.play_in(tasks, lambda name: commands)).values()
    assert parts(result) == ALL
    assert [call.text.splitlines()[-1] for call in result.tool_calls[1:]] == ["0 yes /testbed", "0 yes /tmp"]


FAULTS: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "no-image": ({}, {"image": "nowhere"}, "no image 'nowhere'"),
    "no-repository": ({}, {"working_dir": "/usr"}, "/usr: the repository can't be used: no-repository"),
    "other-test-patch": (
        {"test_patch": "--- a/tests/test_core.py\n+++ b/tests/test_core.py\n@@ -1 +1 @@\n-nothing\n+something\n"},
        {},
        "the repository can't be used: the test patch does not apply: error: patch failed: tests/test_core.py:1",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
async def test_what_no_agent_can_have_caused_masks(agents: Agents, place: Path, tmp_path: Path, name: str) -> None:
    columns, settings, problem = FAULTS[name]
    tasks = environment(place, tmp_path, ["task"], columns, **settings)
    (result,) = (await agents.play_in(tasks, lambda name: [FIX])).values()
    assert (result.masked, result.cause, result.reward) == (True, Cause.INFRA, None)
    assert problem in str(result.error)


async def test_a_reward_of_the_run_takes_the_place_of_the_tests(agents: Agents, place: Path, tmp_path: Path) -> None:
    tasks = environment(place, tmp_path, ["task"])
    (result,) = (await agents.play_in(tasks, lambda name: ["true"])).values()
    (task,) = tasks.tasks()
    with pytest.raises(NotScored, match="no tool bash has run the tests"):
        await tasks.score(task, replace(result, tool_rewards={}))
    own = EnvironmentSetup(tmp_path / "rows.jsonl", reward=parse_rewards([{"fn": "multiturn_reward"}]))
    assert list((await SweEnvironment(SweConfig(), own).score(task, result)).parts) == ["multiturn_reward"]


async def test_an_untouched_image_is_asked_once(
    agents: Agents, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    async def counted(run: RunProgram, tests: RepositoryTests, image: str) -> ImageBase:
        asked.append(image)
        return await look(run, tests, image)

    monkeypatch.setattr("rollout.envs.swe.shell.look", counted)
    names = ["one", "two"]
    results = await agents.play_in(environment(place, tmp_path, names), lambda name: [FIX])
    assert {name: parts(result) for name, result in results.items()} == dict.fromkeys(names, ALL)
    assert asked == ["calc"]
