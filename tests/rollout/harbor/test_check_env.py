"""`fairbox data harbor`: which tasks are sound, and which are not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from rollout.cli import main
from rollout.stack import LocalStack
from tests.rollout.harbor.folders import ANSWER_TEST, PLAIN_TOML, add_image, plain_layers, write_task
from tests.rollout.services import LAZY, executor_status


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LocalStack]:
    store = tmp_path_factory.mktemp("images") / "store"
    add_image(store, "plain", plain_layers())
    add_image(store, "plain-user", plain_layers(), user="1000")
    async with LocalStack(executor_args=[f"image_dir={store}", *LAZY]) as stack:
        if not (await executor_status(stack)).HasField("images"):
            pytest.skip("nothing is mounted at this level")
        yield stack


def solve(folder: Path, script: str) -> None:
    (folder / "solution").mkdir()
    (folder / "solution" / "solve.sh").write_text(script)
    (folder / "solution" / "number").write_text("42\n")


@pytest.mark.asyncio(loop_scope="module")
async def test_tasks_are_named_with_what_their_solutions_are_worth(
    stack: LocalStack, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tasks = tmp_path / "tasks"
    toml = f"{PLAIN_TOML}[solution]\nenv = {{ TARGET = '/app/answer' }}\n"
    solve(write_task(tasks / "sound", toml=toml), 'cp "${0%/*}/number" "$TARGET"')
    write_task(tasks / "no-solution")
    solve(write_task(tasks / "wrong-solution"), "echo 41 > /app/answer; echo sorry; exit 1")
    solve(write_task(tasks / "easy", test="echo looks good; echo 1 > /logs/verifier/reward.txt"), "true")
    given = [f"data={tasks}", f"executor={stack.ports.executor}"]
    assert await asyncio.to_thread(main, ["data", "harbor", *given, "image=plain"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines.pop() == "4 tasks, 2 of them broken"
    assert sorted(lines) == [
        "  looks good",
        "  sorry",
        "easy: solution 1, nothing 1: BROKEN",
        "no-solution: no solution, nothing 0",
        "sound: solution 1, nothing 0",
        "wrong-solution: solution 0, nothing 0: BROKEN",
    ]
    assert await asyncio.to_thread(main, ["data", "harbor", *given, f"data={tasks / 'sound'}", "image=plain"]) == 0
    assert await asyncio.to_thread(main, ["data", "harbor", *given]) == 1
    said = capsys.readouterr().out
    assert "no-solution: could not be checked: " in said
    assert "no image 'no-solution'" in said


@pytest.mark.asyncio(loop_scope="module")
async def test_solutions_and_tests_run_as_root_whoever_the_image_is_for(
    stack: LocalStack, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    test = 'echo 0 > /logs/verifier/reward.txt; [ "$UID" = 0 ] && cat /app/answer > /logs/verifier/reward.txt'
    solve(write_task(tmp_path / "tasks" / "who", test=test), 'echo "$((UID == 0))" > /app/answer')
    given = [f"data={tmp_path / 'tasks'}", f"executor={stack.ports.executor}", "image=plain-user"]
    assert await asyncio.to_thread(main, ["data", "harbor", *given]) == 0, capsys.readouterr().out


def test_bad_folders_and_settings_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_task(tmp_path / "task", test=ANSWER_TEST, toml="version = 3\n")
    assert main(["data", "harbor", f"data={tmp_path}"]) == 1
    assert "task.toml: version is 3, must be a valid string" in capsys.readouterr().err
    assert main(["data", "harbor", f"data={tmp_path}", "image={nme}"]) == 2
    assert ": image is '{nme}', must be a name, in which braces are {name} alone" in capsys.readouterr().err
