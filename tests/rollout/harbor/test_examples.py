"""The tasks of examples/harbor: each is worth 1 if its own solution is played, and 0 if nothing is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from rollout.cli import main
from rollout.stack import LocalStack
from rollout.tokens import ChatTemplate, HubTokenizer
from tests.executor.images.archives import host_layer
from tests.rollout.harbor.folders import EXAMPLES, PROGRAMS, Agents, add_image, files_layer, python_layer
from tests.rollout.services import executor_status, nothing_left

pytestmark = pytest.mark.timeout(300)

NEEDS = {
    "fix-median": ("python3",),
    "git-history": ("git", "sed"),
    "greeter-service": ("grep", "mkfifo", "seq"),
    "repair-json": ("jq",),
    "sales-report": ("awk", "sort"),
    "write-dedupe": (),
}
"""Task -> the programs of its image, beside the common ones: what its Dockerfile's base or apt-get bring."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LocalStack]:
    store = tmp_path_factory.mktemp("tasks") / "store"
    for name, programs in NEEDS.items():
        layers = [host_layer(*PROGRAMS, *programs), *[python_layer()] * ("python3" in programs)]
        add_image(store, name, [*layers, files_layer(EXAMPLES / name / "environment" / "files")])
    async with LocalStack(executor_args=[f"image_dir={store}"]) as stack:
        if not (await executor_status(stack)).HasField("images"):
            pytest.skip("nothing is mounted at this level")
        yield stack


@pytest.fixture
def agents(stack: LocalStack, tokenizer: HubTokenizer, chat: ChatTemplate) -> Agents:
    return Agents(stack, tokenizer, chat)


def solution(name: str) -> list[str]:
    return [(EXAMPLES / name / "solution" / "solve.sh").read_text()]


@pytest.mark.asyncio(loop_scope="module")
async def test_solutions_are_worth_all_and_nothing_is_worth_nothing(agents: Agents, stack: LocalStack) -> None:
    assert sorted(path.name for path in EXAMPLES.iterdir() if path.is_dir()) == sorted(NEEDS)
    whole = (EXAMPLES, list(NEEDS))
    without_a_command = (EXAMPLES / "write-dedupe", ["write-dedupe"])
    for (data, names), commands, worth in (
        (whole, solution, 1.0),
        (whole, lambda name: ["true"], 0.0),
        (without_a_command, lambda name: [], 0.0),
    ):
        results = await agents.play(data, commands)
        assert {name: result.error for name, result in results.items()} == dict.fromkeys(names)
        rewards = {name: result.reward.value for name, result in results.items() if result.reward is not None}
        assert rewards == dict.fromkeys(names, worth), [result.messages for result in results.values()]
        assert all(result.tool_rewards["bash/no_reward"] == 0.0 for result in results.values())
    await nothing_left(stack)


LONG = ("fix-median", "git-history", "greeter-service", "sales-report")
"""Tasks that take up to a minute with all cheats; the others show that such tasks are played."""


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.soak] * (name in LONG)) for name in NEEDS])
async def test_they_are_fit_to_train_on(stack: LocalStack, capsys: pytest.CaptureFixture[str], name: str) -> None:
    given = [f"data={EXAMPLES / name}", f"executor={stack.ports.executor}", "repeats=1", "parallel=4"]
    assert await asyncio.to_thread(main, ["check-env", *given]) == 0, capsys.readouterr().out


@pytest.mark.asyncio(loop_scope="module")
async def test_a_half_of_an_answer_has_its_parts(agents: Agents) -> None:
    unordered = "cd /app; (echo region,total; sort /app/sums) > report.csv"
    sums = "printf '%s\\n' east,12.15 north,170.00 south,300.00 west,310.00 > /app/sums"
    results = await agents.play(EXAMPLES / "sales-report", lambda name: [sums, unordered])
    reward = results["sales-report"].reward
    assert reward is not None
    assert (reward.value, reward.parts) == (
        0.5,
        {"reward": 0.5, "totals": 1.0, "order": 0.0, "no_reward": 0.0, "timed_out": 0.0},
    )


@pytest.mark.parametrize("name", NEEDS)
def test_an_image_of_these_tests_has_the_files_of_its_dockerfile(name: str) -> None:
    lines = (EXAMPLES / name / "environment" / "Dockerfile").read_text().splitlines()
    assert lines[-2:] == ["WORKDIR /app", "COPY files/ /app/"]
