"""Rows of SWE-smith over source archives of real projects: undoing the defect is worth 1, and other work 0."""

from __future__ import annotations

import re
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from executor_service import ExecutorClient, InputFile, Limits
from rollout.envs.base import EnvironmentSetup
from rollout.envs.swe import SweConfig, SweEnvironment
from rollout.stack import LocalStack
from rollout.tokens import ChatTemplate, HubTokenizer
from tests.rollout.harbor.folders import Agents
from tests.rollout.real_tasks import origin, real_rows
from tests.rollout.services import executor_status, nothing_left
from tests.rollout.swe_env.repository import add_repository, git, python_layers, write_rows, writing

pytestmark = [pytest.mark.soak, pytest.mark.timeout(400)]

PROJECTS = ("bottlepy__bottle", "python-hyper__h11", "r1chardj0n3s__parse")
"""Projects whose tests need no other package, and whose rows have their defects outside of the tests."""
_TEST_FILE = re.compile(r"(test_\w+|test)\.py")


def files_of_tests(place: Path) -> str:
    found = (path for path in place.rglob("*.py") if _TEST_FILE.fullmatch(path.name))
    return " ".join(sorted(str(path.relative_to(place)) for path in found))


async def passing(executor: ExecutorClient, row: dict[str, Any], place: Path, before: str) -> set[str]:
    """Names of the tests that pass in a row's image, cut at the first space as published data has them."""
    tests = f"PYTHONPATH=/testbed pytest -rA --tb=no -p no:cacheprovider {files_of_tests(place)}"
    result = await executor.execute(
        f"cd /testbed; {before}; {tests} > /sandbox/output 2>&1",
        language="bash",
        image=row["instance_id"],
        files=[InputFile("defect.patch", row["patch"].encode())],
        return_paths=["output"],
        limits=Limits(wall_time_s=120),
    )
    return set(re.findall(r"^PASSED (\S+)", result.files[0].content.decode(), re.MULTILINE))


async def decided(stack: LocalStack, row: dict[str, Any], place: Path) -> dict[str, Any]:
    """The row with the tests that decide."""
    async with ExecutorClient(stack.ports.executor) as executor:
        bad = await passing(executor, row, place, "true")
        good = await passing(executor, row, place, "git apply -R /sandbox/defect.patch")
    columns = ("instance_id", "repo", "problem_statement", "patch")
    tests = {"FAIL_TO_PASS": sorted(good - bad), "PASS_TO_PASS": sorted(good & bad)}
    return {name: row[name] for name in columns} | tests


@pytest.fixture
def places(tmp_path: Path) -> dict[str, tuple[dict[str, Any], Path]]:
    """Instance -> its row, and its repository with the defect."""
    chosen = {str(row["repo"]).partition("/")[2].rpartition(".")[0]: row for row in reversed(real_rows())}
    places = {}
    for name in PROJECTS:
        place = tmp_path / name / "repository"
        shutil.copytree(origin(chosen[name]), place, symlinks=True)
        (place.parent / "defect.patch").write_text(chosen[name]["patch"])
        git(place, "apply", str(place.parent / "defect.patch"))
        git(place, "commit", "-qam", "The state that is reported.")
        places[chosen[name]["instance_id"]] = (chosen[name], place)
    return places


@pytest.fixture
async def stack(places: dict[str, tuple[dict[str, Any], Path]], tmp_path: Path) -> AsyncIterator[LocalStack]:
    layers = python_layers()
    for name, (_, place) in places.items():
        add_repository(tmp_path / "store", name, place, layers)
    async with LocalStack(executor_args=[f"image_dir={tmp_path / 'store'}"]) as stack:
        if not (await executor_status(stack)).HasField("images"):
            pytest.skip("nothing is mounted at this level")
        yield stack


async def test_the_defects_of_real_projects_are_told_from_their_fixes(
    stack: LocalStack,
    places: dict[str, tuple[dict[str, Any], Path]],
    tmp_path: Path,
    tokenizer: HubTokenizer,
    chat: ChatTemplate,
) -> None:
    rows = [await decided(stack, *each) for each in places.values()]
    environment = SweEnvironment(
        SweConfig(setup="export PYTHONPATH=/testbed"), EnvironmentSetup(data=write_rows(tmp_path / "rows.jsonl", rows))
    )
    agents = Agents(stack, tokenizer, chat)
    patches = {row["instance_id"]: row["patch"] for row in rows}

    def undo(name: str) -> list[str]:
        return [f"{writing('/tmp/defect.patch', patches[name])}; git apply -R /tmp/defect.patch"]

    for commands, worth, share in ((undo, 1.0, 1.0), (lambda name: ["echo more >> notes"], 0.0, 0.0)):
        results = await agents.play_in(environment, commands)
        found = {name: result.reward for name, result in results.items()}
        assert all(reward is not None for reward in found.values()), [result.error for result in results.values()]
        for name, reward in found.items():
            assert reward is not None
            assert (reward.value, reward.parts["canary"], reward.parts["pass_to_pass"]) == (worth, 1.0, 1.0), name
            assert reward.parts["fail_to_pass"] == share, name
    await nothing_left(stack)
