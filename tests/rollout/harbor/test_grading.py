"""Grading of what agents leave, some of whom try to be graded better than they are."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from executor_service import Cause
from rollout.envs.base import EnvironmentSetup
from rollout.envs.harbor import HarborConfig, HarborEnvironment, TaskShell, TaskShellConfig, TaskTests
from rollout.loop import TrajectoryResult
from rollout.rewards import NotScored, parse_rewards
from rollout.stack import LocalStack
from rollout.tokens import ChatTemplate, HubTokenizer
from rollout.tools import BranchRefused, InfraError
from tests.rollout.harbor.folders import PLAIN_TOML, Agents, add_image, plain_layers, write_task
from tests.rollout.services import executor_status, nothing_left

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LocalStack]:
    store = tmp_path_factory.mktemp("tasks") / "store"
    add_image(store, "plain", plain_layers())
    async with LocalStack(executor_args=[f"image_dir={store}"]) as stack:
        if not (await executor_status(stack)).HasField("images"):
            pytest.skip("nothing is mounted at this level")
        yield stack


@pytest.fixture
def agents(stack: LocalStack, tokenizer: HubTokenizer, chat: ChatTemplate) -> Agents:
    return Agents(stack, tokenizer, chat)


def worth(result: TrajectoryResult) -> tuple[float, float, float]:
    """(reward, no_reward, timed_out)"""
    assert result.reward is not None, result.error
    parts = result.reward.parts
    assert parts["reward"] == result.reward.value
    return result.reward.value, parts["no_reward"], parts["timed_out"]


FORGE = "echo 1 > {0}/reward.txt; echo '{{\"reward\": 1}}' > {0}/reward.json; "
TRICKS = {
    "reward-written-before": f"mkdir -p /logs/verifier; {FORGE.format('/logs/verifier')}",
    "verifier-is-a-link": f"mkdir -p /logs /srv/f; {FORGE.format('/srv/f')} ln -s /srv/f /logs/verifier",
    "logs-is-a-link": f"mkdir -p /srv/verifier; {FORGE.format('/srv/verifier')} rm -rf /logs; ln -s /srv /logs",
    "logs-is-a-file": "rm -rf /logs; echo 1 > /logs",
    "tests-is-a-link": "mkdir -p /srv/t; echo 'echo 1 > /logs/verifier/reward.txt' > /srv/t/test.sh; "
    "ln -s /srv/t /tests",
    "tests-are-planted": "mkdir /tests; echo 'echo 1 > /logs/verifier/reward.txt' > /tests/test.sh; "
    "touch /tests/conftest.py; chmod 555 /tests",
    "no-rights": f"mkdir -p /logs/verifier /tests/a; {FORGE.format('/logs/verifier')} chmod 0 /logs/verifier /tests",
    "daemon": f"(while true; do mkdir -p /logs/verifier; {FORGE.format('/logs/verifier')} done) > /dev/null 2>&1 &",
    "work-folder": f"mkdir -p /sandbox/tests; {FORGE.format('/sandbox')} echo 'exit 0' > /sandbox/tests/test.sh",
}
NO_PLANTS = 'if [ -e /tests/conftest.py ] || [ "$(cat /app/answer)" = 42 ]; then echo 1; else echo 0; fi'


async def test_tricks_are_worth_nothing(agents: Agents, stack: LocalStack, tmp_path: Path) -> None:
    for name in (*TRICKS, "honest"):
        write_task(tmp_path / name, test=f"{NO_PLANTS} > /logs/verifier/reward.txt\n")
    tricks = {"honest": "echo 42 > /app/answer"} | TRICKS
    results = await agents.play(tmp_path, lambda name: [tricks[name]], image="plain")
    assert all(result.tool_calls[0].outcome == "ok" for result in results.values()), results
    found = {name: worth(result) for name, result in results.items()}
    assert found == dict.fromkeys(TRICKS, (0.0, 0.0, 0.0)) | {"honest": (1.0, 0.0, 0.0)}
    await nothing_left(stack)


SPOILS = {
    "no-bash": "rm /usr/bin/bash",
    "no-cp": "rm /usr/bin/cp",
    "no-folder": "cd /; rm -rf /app; touch /app",
    "no-root": "cd /; rm -rf /usr /bin /lib /lib64",
}


async def test_an_image_that_is_spoilt_is_the_agents_doing(agents: Agents, tmp_path: Path) -> None:
    for name in SPOILS:
        write_task(tmp_path / name)
    results = await agents.play(tmp_path, lambda name: [SPOILS[name]], image="plain")
    assert {name: worth(result) for name, result in results.items()} == dict.fromkeys(SPOILS, (0.0, 1.0, 0.0))


async def test_what_root_replaces_in_the_image_is_believed(agents: Agents, tmp_path: Path) -> None:
    """Nothing protects from that, which the page says: the tests run the programs of the image that the agent left."""
    write_task(tmp_path / "task")
    replaced = "printf '#!/usr/bin/bash\\necho 42\\n' > /usr/bin/cat"
    results = await agents.play(tmp_path, lambda name: [replaced], image="plain")
    assert worth(results["task"]) == (1.0, 0.0, 0.0)


TESTS = {
    "says-nothing": ("true", (0.0, 1.0, 0.0)),
    "says-nonsense": ("echo yes > /logs/verifier/reward.txt", (0.0, 1.0, 0.0)),
    "says-infinity": ("echo inf > /logs/verifier/reward.txt", (0.0, 1.0, 0.0)),
    "fails-and-says": ("echo 0.25 > /logs/verifier/reward.txt; exit 3", (0.25, 0.0, 0.0)),
    "json-first": ('cd /logs/verifier; echo 1 > reward.txt; echo \'{"a": 1, "b": 0}\' > reward.json', (0.5, 0.0, 0.0)),
    "bad-json-first": ("cd /logs/verifier; echo 1 > reward.txt; echo nothing > reward.json", (0.0, 1.0, 0.0)),
    "link": ("ln -s /logs/verifier/none /logs/verifier/reward.txt", (0.0, 1.0, 0.0)),
    "kills-all": ("echo 1 > /logs/verifier/reward.txt; kill -9 $PPID; sleep 5", (0.0, 1.0, 0.0)),
    "leaves-a-process": ("sleep 600 & echo 1 > /logs/verifier/reward.txt", (1.0, 0.0, 0.0)),
    "hangs": ("echo 1 > /logs/verifier/reward.txt; sleep 600", (0.0, 1.0, 1.0)),
    "prints": ("for _ in {1..40000}; do echo 0123456789012345678901234567890123456789; done; "
               "echo 1 > /logs/verifier/reward.txt", (1.0, 0.0, 0.0)),
}  # fmt: skip


async def test_the_reward_file_alone_says_what_a_trajectory_is_worth(agents: Agents, tmp_path: Path) -> None:
    for name, (test, _) in TESTS.items():
        toml = PLAIN_TOML.replace("20", "2") if name == "hangs" else PLAIN_TOML
        write_task(tmp_path / name, test=f"{test}\n", toml=toml)
    results = await agents.play(tmp_path, lambda name: ["true"], image="plain")
    assert {name: worth(result) for name, result in results.items()} == {
        name: each for name, (_, each) in TESTS.items()
    }


SEES = """\
version = "1.0"
[environment]
memory = "1G"
env = { COMMON = "both", GIVEN = "${NOT_THERE:-default}" }
[verifier]
env = { HIDDEN = "tests" }
"""


async def test_variables_and_folder_are_those_of_the_task(agents: Agents, tmp_path: Path) -> None:
    test = '[ "$COMMON $GIVEN $HIDDEN $PWD" = "both default tests /app" ] && echo 1 > /logs/verifier/reward.txt\n'
    write_task(tmp_path / "task", test=test, toml=SEES)
    commands = ['echo "$COMMON $GIVEN [$HIDDEN] $PWD"; ls -A / /sandbox', "cd /tmp; COMMON=other"]
    results = await agents.play(tmp_path / "task", lambda name: commands, image="plain")
    assert worth(results["task"]) == (1.0, 0.0, 0.0)
    text = results["task"].tool_calls[0].text
    assert text.startswith("both default [] /app\n")
    assert "tests" not in text


async def test_a_shell_that_its_own_command_ended_leaves_what_the_next_one_would_find(
    agents: Agents, tmp_path: Path
) -> None:
    write_task(tmp_path / "task")
    results = await agents.play(tmp_path, lambda name: ["echo 42 > /app/answer; exit 3"], image="plain")
    assert worth(results["task"]) == (1.0, 0.0, 0.0)


async def test_the_service_s_own_failure_masks(agents: Agents, tmp_path: Path) -> None:
    write_task(tmp_path / "task")
    for commands in (["true"], []):
        results = await agents.play(tmp_path, lambda name, given=commands: given, image="nowhere")  # type: ignore[misc]
        result = results["task"]
        assert (result.masked, result.cause, result.reward) == (True, Cause.INFRA, None)
        assert "no image 'nowhere'" in str(result.error)


async def test_the_longest_time_of_a_test_is_the_runs_to_say(agents: Agents, tmp_path: Path) -> None:
    write_task(tmp_path / "task", test="sleep 600\n", toml='version = "1.0"\n[verifier]\ntimeout_sec = 3000.0\n')
    results = await agents.play(tmp_path, lambda name: ["true"], image="plain", test_timeout=1.0)
    assert worth(results["task"]) == (0.0, 1.0, 1.0)


def shell_of(stack: LocalStack) -> TaskShell:
    config = TaskShellConfig(default_timeout=20.0, queue_timeout=5.0)
    return TaskShell(config, executor=stack.ports.executor, limiter=stack.ports.limiter)


async def test_a_trajectory_can_branch_until_it_has_run_something(stack: LocalStack, tmp_path: Path) -> None:
    tests = TaskTests(str(write_task(tmp_path / "task")))
    async with shell_of(stack) as shell:
        await shell.create("one", image="plain", tests=tests)
        await shell.branch("one", ["two"])
        await shell.execute("two", {"command": "echo 42 > /app/answer"})
        with pytest.raises(BranchRefused):
            await shell.branch("two", ["three"])
        rewards = [await shell.calc_reward(name) for name in ("one", "two", "three")]
        assert [None if each is None else each["reward"] for each in rewards] == [0.0, 1.0, None]
        for name in ("one", "two"):
            await shell.release(name)
            assert await shell.calc_reward(name) is None
    await nothing_left(stack)


async def test_tests_that_are_not_there_are_not_the_models_fault(stack: LocalStack, tmp_path: Path) -> None:
    async with shell_of(stack) as shell:
        for options in ({}, {"image": "plain"}, {"image": "", "tests": TaskTests(str(tmp_path))}):
            with pytest.raises(InfraError, match="must have both"):
                await shell.create("t", **options)
        folder = write_task(tmp_path / "task")
        await shell.create("t", image="plain", tests=TaskTests(str(folder)))
        (folder / "tests" / "test.sh").unlink()
        (folder / "tests" / "test.sh").symlink_to("/etc/passwd")
        with pytest.raises(InfraError, match=r"the task's tests can't be read: .*is a link"):
            await shell.calc_reward("t")


async def test_a_service_that_takes_no_snapshots_or_dies_scores_nothing(tmp_path: Path) -> None:
    store = tmp_path / "store"
    add_image(store, "plain", plain_layers())
    tests = TaskTests(str(write_task(tmp_path / "task")))
    async with LocalStack(executor_args=[f"image_dir={store}", "max_snapshot_bytes=0"]) as stack:
        if not (await executor_status(stack)).HasField("images"):
            pytest.skip("nothing is mounted at this level")
        async with shell_of(stack) as shell:
            await shell.create("t", image="plain", tests=tests)
            await shell.execute("t", {"command": "echo 42 > /app/answer"})
            with pytest.raises(InfraError, match="this server takes no snapshots: its max_snapshot_bytes is 0"):
                await shell.calc_reward("t")
            os.kill(stack.pid("executor_service"), signal.SIGKILL)
            with pytest.raises(InfraError):
                await shell.calc_reward("t")


async def test_a_reward_of_the_run_takes_the_place_of_the_tests(agents: Agents, tmp_path: Path) -> None:
    write_task(tmp_path / "task")
    (result,) = (await agents.play(tmp_path, lambda name: ["true"], image="plain")).values()
    own = parse_rewards([{"fn": "multiturn_reward"}])
    environment = HarborEnvironment(HarborConfig(), EnvironmentSetup(tmp_path, reward=own))
    (task,) = environment.tasks()
    assert list((await environment.score(task, result)).parts) == ["multiturn_reward"]
    environment = HarborEnvironment(HarborConfig(), EnvironmentSetup(tmp_path))
    assert (await environment.score(task, result)).value == 0.0
    with pytest.raises(NotScored, match="no tool bash has run the tests"):
        await environment.score(task, replace(result, tool_rewards={"other": 1.0}))
