"""`fairbox check-env` over task folders: which are sound, and what is wrong with the others."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from rollout.cli import main
from rollout.stack import LocalStack
from tests.executor.images.archives import Entry, host_layer, layer
from tests.rollout.harbor.folders import ANSWER_TEST, PLAIN_TOML, add_image, plain_layers, write_task
from tests.rollout.services import executor_status


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LocalStack]:
    store = tmp_path_factory.mktemp("images") / "store"
    add_image(
        store, "plain", [*plain_layers(), host_layer("find", "sha256sum"), layer(Entry("opt/copy", LEAKED.encode()))]
    )
    add_image(store, "plain-user", plain_layers(), user="1000")
    async with LocalStack(executor_args=[f"image_dir={store}"]) as stack:
        if not (await executor_status(stack)).HasField("images"):
            pytest.skip("nothing is mounted at this level")
        yield stack


def solve(folder: Path, script: str) -> None:
    (folder / "solution").mkdir()
    (folder / "solution" / "solve.sh").write_text(script)
    (folder / "solution" / "number").write_text("42\n")


RANDOM = "echo $((SRANDOM % 2)) > /logs/verifier/reward.txt"
EXISTS = "if [ -e /app/answer ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt"
LOADS = "[ ! -e conftest.py ] || { echo 1 > /logs/verifier/reward.txt; exit; }\n" + ANSWER_TEST
SLOW = f"sleep 12\n{ANSWER_TEST}"
LEAKED = "# This very file is in the image, where an agent can read it.\n" + ANSWER_TEST


async def checked(stack: LocalStack, data: Path, *given: str) -> dict[str, set[str]]:
    """Task -> kinds of its findings, with the image `plain`."""
    out = data.parent / "findings.json"
    words = [f"data={data}", f"executor={stack.ports.executor}", "env_config.image=plain", f"json={out}", "parallel=4"]
    code = await asyncio.to_thread(main, ["check-env", *words, *given])
    kinds = {each["name"]: {finding["kind"] for finding in each["findings"]} for each in json.loads(out.read_text())}
    assert code == any(kinds.values())
    return kinds


@pytest.mark.asyncio(loop_scope="module")
async def test_each_planted_defect_is_found_and_no_other(
    stack: LocalStack, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tasks = tmp_path / "tasks"
    write_task(tasks / "no-solution")
    solve(write_task(tasks / "wrong-solution"), "echo 41 > /app/answer; echo sorry; exit 1")
    solve(write_task(tasks / "lacks"), "no-such-program > /app/answer")
    solve(write_task(tasks / "easy", test="echo looks good; echo 1 > /logs/verifier/reward.txt"), "true")
    solve(write_task(tasks / "leaked", test=LEAKED), "echo 42 > /app/answer")
    assert await checked(stack, tasks, "cheats=false") == {
        "no-solution": set(),
        "wrong-solution": {"solution_fails"},
        "lacks": {"solution_fails", "lacks_program"},
        "easy": {"nothing_passes"},
        "leaked": {"tests_in_reach"},
    }
    said = capsys.readouterr().out
    assert said.endswith("\n5 tasks, 4 of them broken\n")
    assert "wrong-solution: solution 0, nothing 0: BROKEN\n  solution_fails: the solution is worth 0 (mend" in said
    assert "    sorry\n" in said
    assert "  tests_in_reach: /opt/copy is tests/test.sh (delete" in said


@pytest.mark.asyncio(loop_scope="module")
async def test_a_verdict_that_is_drawn_is_flaky(stack: LocalStack, tmp_path: Path) -> None:
    """Forty draws: both kinds of verdicts are equal throughout in one of 10^11 runs."""
    solve(write_task(tmp_path / "tasks" / "random", test=RANDOM), "true")
    (kinds,) = (await checked(stack, tmp_path / "tasks", "cheats=false", "repeats=20")).values()
    assert "flaky" in kinds


@pytest.mark.asyncio(loop_scope="module")
async def test_tests_that_cheats_get_by_are_found(
    stack: LocalStack, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tasks = tmp_path / "tasks"
    toml = f"{PLAIN_TOML}[solution]\nenv = {{ TARGET = '/app/answer' }}\n"
    solve(write_task(tasks / "sound", toml=toml), 'cp "${0%/*}/number" "$TARGET"')
    solve(write_task(tasks / "exists", test=EXISTS), "echo 42 > /app/answer")
    solve(write_task(tasks / "loads", test=LOADS), "echo 42 > /app/answer")
    kinds = await checked(stack, tasks, "repeats=1")
    said = capsys.readouterr().out
    assert kinds == {"sound": set(), "exists": {"cheated"}, "loads": {"cheated"}}, said
    assert "  cheated: conftest is worth 1 (the tests load what is in the working folder" in said
    assert "  cheated: answers-empty is worth 1 (the tests are content with any answer" in said


@pytest.mark.asyncio(loop_scope="module")
async def test_what_can_not_be_checked_says_why_and_ends_no_other(
    stack: LocalStack, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    toml = PLAIN_TOML + '[environment]\ndocker_image = "{}"\n'
    write_task(tmp_path / "one", toml=toml.format("plain"))
    write_task(tmp_path / "two", toml=toml.format("nowhere"))
    write_task(tmp_path / "slow", toml=toml.format("plain"), test=SLOW)
    given = [f"data={tmp_path}", f"executor={stack.ports.executor}", "cheats=false", "repeats=1"]
    assert await asyncio.to_thread(main, ["check-env", *given]) == 1
    said = capsys.readouterr().out
    assert "one: no solution, nothing 0\n" in said
    assert "slow: no solution, nothing 0: BROKEN\n  slow: the tests take 12." in said
    assert "two: no solution, nothing 0: BROKEN\n  not_checked: " in said
    assert "no image 'nowhere'" in said


@pytest.mark.asyncio(loop_scope="module")
async def test_solutions_and_tests_run_as_root_whoever_the_image_is_for(
    stack: LocalStack, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    test = 'echo 0 > /logs/verifier/reward.txt; [ "$UID" = 0 ] && cat /app/answer > /logs/verifier/reward.txt'
    solve(write_task(tmp_path / "tasks" / "who", test=test), 'echo "$((UID == 0))" > /app/answer')
    given = [f"data={tmp_path / 'tasks'}", f"executor={stack.ports.executor}", "env_config.image=plain-user"]
    assert await asyncio.to_thread(main, ["check-env", *given, "cheats=false"]) == 0, capsys.readouterr().out


def test_bad_folders_and_settings_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_task(tmp_path / "task", test=ANSWER_TEST, toml="version = 3\n")
    assert main(["check-env", f"data={tmp_path}"]) == 1
    assert "task.toml: version is 3, must be a valid string" in capsys.readouterr().err
    assert main(["check-env", f"data={tmp_path}", "env_config.image={nme}"]) == 2
    assert "env_config.image is '{nme}', must be a name, in which braces are {name} alone" in capsys.readouterr().err
    assert main(["check-env", f"data={tmp_path}", "env=nothing"]) == 2
    assert "env is 'nothing', must be one of: " in capsys.readouterr().err
    assert main(["check-env", f"data={tmp_path}", "json=nowhere/findings.json"]) == 2
    assert "json is 'nowhere/findings.json', whose folder is not there" in capsys.readouterr().err
    (tmp_path / "rows.jsonl").write_text('{"question": "1 + 1?", "answer": "#### 2"}\n')
    assert main(["check-env", f"data={tmp_path / 'rows.jsonl'}", "env=gsm8k"]) == 2
    assert "env can't be checked: it has no `checker`" in capsys.readouterr().err
