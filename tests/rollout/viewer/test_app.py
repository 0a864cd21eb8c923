"""The program on the screen, driven by keys, on dumps that were really played."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from rollout.cli import main
from rollout.dump import read_dump
from rollout.viewer.screens import row as row_module
from rollout.viewer.screens.base import PromptScreen
from rollout.viewer.screens.lists import CompareScreen, GroupsScreen, SearchScreen, StepsScreen
from rollout.viewer.screens.row import RowScreen
from rollout.viewer.widgets import table as table_module
from rollout.viewer.widgets.document import DocumentView
from rollout.viewer.widgets.tokens import TokenView
from tests.rollout.viewer.conftest import verl_row
from tests.rollout.viewer.driver import DEADLINE_S, viewer

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("size", [(80, 24), (200, 50), (30, 8)])
async def test_newest_step_is_shown(played: Path, size: tuple[int, int]) -> None:
    async with viewer(played, size=size) as driver:
        lines = driver.lines()
        assert all(len(line) >= size[0] - 12 for line in lines)  # wide characters take two cells
        assert driver.row_lines() == [1, 2, 3, 4, 5, 6]
        if size[0] >= 80:
            assert "step 10 (2 of 2)" in lines[0]
            assert "mean score 0.800  masked 1" in lines[-2]
            assert lines[2].split()[:4] == ["1", "1", "answered", "POLICY"]
        assert ("index" in lines[1]) == (size[0] == 200)


async def test_rows_are_sorted_by_number_and_back(write: Callable[..., Path]) -> None:
    scores = [10, 2, 0.5, -0.5, None, -1]
    path = write(1, *(verl_row(number, score=score) for number, score in enumerate(scores)))
    async with viewer(path) as driver:
        orders = []
        await driver.press("right")
        for _ in range(3):
            await driver.press("s")
            orders.append(driver.row_lines())
        assert orders == [[1, 2, 3, 4, 6, 5], [6, 4, 3, 2, 1, 5], [1, 2, 3, 4, 5, 6]]


async def test_filter_and_its_mistakes(played: Path) -> None:
    async with viewer(played) as driver:
        await driver.press("slash")
        await driver.answer("scor>1")
        await driver.says("scor is not a field; did you mean score?")
        await driver.answer("outcome=program_error not masked=true")
        await driver.until(lambda: driver.row_lines() == [2, 4])
        await driver.says("row 1 of 2  of 6  filter outcome=program_error")
        await driver.press("slash")
        await driver.answer("漢字 reward_parts.gsm8k/correct=1")
        await driver.until(lambda: driver.row_lines() == [1, 3])
        await driver.press("N")
        await driver.says("there is no further step")
        await driver.press("P")
        await driver.until(lambda: driver.row_lines() == [1])
        assert "step 9 (1 of 2)" in driver.text()


async def test_filter_of_a_setting_knows_the_fields_of_the_dump(write: Callable[..., Path]) -> None:
    async with viewer(write(1, *(verl_row(number) for number in range(4))), filter="acc=1") as driver:
        assert driver.row_lines() == [1, 3]


async def test_trajectory_folds_and_is_searched(played: Path) -> None:
    async with viewer(played) as driver:
        await driver.press("down", "enter")
        screen = await driver.shown(RowScreen)
        view = screen.query_one(DocumentView)
        await driver.says("step 10 line 2  (2 of 6)")
        await driver.until(lambda: view.parts)
        await driver.says("▼ trajectory")
        await driver.press("space")
        await driver.says("▶ trajectory")
        await driver.press("G")
        await driver.says("call 1: echo  program_error")
        await driver.says("␛[31mred")
        await driver.press("f")
        await driver.answer("worked")
        await driver.says("worked is not in this row")
        await driver.press("f")
        await driver.answer("ANSWER")
        await driver.press("escape")
        await driver.press("f")
        await driver.answer("Let me see")
        await driver.says("found Let me see: 1 of 1")
        await driver.press("z", "g", "f")
        await driver.answer("####")
        await driver.until(lambda: len(view.found) > 1)
        count = len(view.found)
        await driver.says(f"found ####: 1 of {count}")
        await driver.press("backspace")
        await driver.says(f"found ####: {count} of {count}")
        await driver.press("enter")
        await driver.says(f"found ####: 1 of {count}")
        assert not view.parts[view.found[0]].collapsed
        await driver.press("n")
        await driver.says("step 10 line 3  (3 of 6)")
        await driver.press("escape")
        assert not view.found
        await driver.press("P")
        await driver.says("step 9 line 3  (3 of 6)")
        await driver.press("escape")
        assert driver.screen is driver.app.rows


async def test_tokens_have_mask_and_logprobs(played: Path, model_dir: Path) -> None:
    record = next(read_dump(played / "10.jsonl"))
    async with viewer(played, tokenizer=str(model_dir)) as driver:
        await driver.press("enter")
        screen = await driver.shown(RowScreen)
        await driver.press("t")
        tokens = screen.query_one(TokenView)
        await driver.until(lambda: tokens.pieces)
        assert len(tokens.pieces) == len(record["prompt_ids"]) + len(record["response_ids"])
        first = len(record["prompt_ids"])
        assert tokens.cursor == first
        await driver.says(f"sampled mask 1  at {first}  id {record['response_ids'][0]} 'Let'  logprob -0.5000  p 0.607")
        await driver.press("right", "m")
        assert (tokens.cursor, "heat" in tokens.shown) == (first + 1, True)
        assert "≥0.9" in driver.text()
        await driver.press("b", "x", "down", "up", "pageup", "pagedown", "home")
        assert tokens.cursor == 0
        assert "prompt mask 0  at 0" in driver.text()
        await driver.press("n")
        await driver.says("step 10 line 2")
        await driver.until(lambda: tokens.cursor > 0)
        await driver.press("t")
        assert not screen.showing_tokens


async def test_row_without_tokens_says_why(write: Callable[..., Path], played: Path) -> None:
    record = next(read_dump(played / "9.jsonl")) | {"model": "nobody/knows"}
    async with viewer(write(1, record, verl_row(0))) as driver:
        await driver.press("enter", "t")
        await driver.says("no tokens: no tokenizer is known for model 'nobody/knows'; set tokenizer to its folder")
        await driver.press("n", "x", "G", "down")
        await driver.says("no tokens: this row has no token ids")


async def test_groups_show_their_rows(played: Path) -> None:
    async with viewer(played) as driver:
        await driver.press("u")
        screen = await driver.shown(GroupsScreen)
        await driver.until(lambda: screen.members.items)
        assert "3 groups of 6 rows" in driver.text()
        await driver.press("right", "right", "right", "s", "s")  # mean, ascending
        groups = screen.table.items
        assert [group.mean for group in groups] == [0.0, 1.0, 1.0]
        await driver.press("down", "enter", "down")
        assert [row.line for row in screen.members.items] == [1, 2]
        await driver.press("enter")
        await driver.shown(RowScreen)
        await driver.says("step 10 line 2  (2 of 2)")
        await driver.press("escape", "escape", "escape")
        assert driver.screen is driver.app.rows


async def test_steps_are_compared(played: Path) -> None:
    async with viewer(played) as driver:
        await driver.press("c")
        await driver.answer("8")
        await driver.says("step is '8';")
        await driver.answer("9")
        screen = await driver.shown(CompareScreen)
        await driver.says("step 9 → step 10  6 pairs  3 better  0 worse")
        assert [change.after.line for change in screen.table.items][:3] == [2, 3, 4]
        await driver.press("enter")
        await driver.shown(RowScreen)
        await driver.says("step 10 line 2  (2 of 2)")
        await driver.press("p")
        await driver.says("step 9 line 2  (1 of 2)")


async def test_search_goes_through_all_steps(played: Path) -> None:
    async with viewer(played) as driver:
        await driver.press("f")
        await driver.answer("")
        await driver.says("there is nothing to look for")
        await driver.answer("traceback")
        screen = await driver.shown(SearchScreen)
        await driver.until(lambda: not screen.running)
        await driver.says("6 rows; enter opens")
        await driver.press("down", "enter")
        await driver.shown(RowScreen)
        await driver.says("found traceback: 1 of 1")
        await driver.says("step 9 line 4  (2 of 6)")
        await driver.press("n", "n")
        await driver.says("step 10 line 2  (4 of 6)")


async def test_steps_are_listed(played: Path) -> None:
    async with viewer(played, step="9") as driver:
        assert "step 9 (1 of 2)" in driver.text()
        await driver.press("o")
        screen = await driver.shown(StepsScreen)
        await driver.until(lambda: screen.table.items)
        assert screen.table.cursor_row == 0
        await driver.press("down", "enter")
        await driver.says("step 10 (2 of 2)")


async def test_rows_are_copied_and_exported(played: Path, tmp_path: Path) -> None:
    lines = (played / "10.jsonl").read_bytes().splitlines(keepends=True)
    async with viewer(played) as driver:
        await driver.press("i")
        assert driver.app.clipboard == json.loads(lines[0])["request_id"]
        await driver.press("e")
        await driver.answer(str(tmp_path / "row.json"))
        await driver.until((tmp_path / "row.json").exists)
        await driver.says("1 rows,")
        assert (tmp_path / "row.json").read_bytes() == lines[0]
        await driver.press("e")
        await driver.answer(str(tmp_path / "row.json"))
        await driver.says("exists, and is not overwritten")
        await driver.press("escape", "slash")
        await driver.answer("score=1")
        await driver.until(lambda: driver.row_lines() == [1, 2, 3, 4])
        await driver.press("E")
        await driver.answer(str(tmp_path / "rows.jsonl"))
        await driver.says("4 rows,")
        assert (tmp_path / "rows.jsonl").read_bytes() == b"".join(lines[:4])


async def test_running_rollout_is_followed(write: Callable[..., Path], tmp_path: Path) -> None:
    async with viewer(tmp_path, follow=True) as driver:
        await driver.says("no step yet, waiting for one")
        path = write(1, verl_row(0))
        await driver.until(lambda: driver.row_lines() == [1])
        line = json.dumps(verl_row(1))
        with path.open("a") as file:
            file.write(line[:10])
            file.flush()
            await driver.says("last line not whole yet")
            file.write(line[10:] + "\n" + json.dumps(verl_row(2)) + "\n")
        await driver.until(lambda: driver.row_lines() == [1, 2, 3])
        assert driver.app.rows.table.cursor_row == 2
        write(2, verl_row(7))
        await driver.says("step 2 (2 of 2)  FOLLOWING")
        await driver.press("w")
        write(3, verl_row(8))
        await driver.until(lambda: len(driver.app.rows.session.folder.steps) == 3)
        await driver.says("step 2 (2 of 3)")


async def test_cursor_stays_on_its_row_while_others_come(write: Callable[..., Path]) -> None:
    path = write(1, *(verl_row(number) for number in range(3)))
    async with viewer(path) as driver:
        await driver.press("right", "s")
        await driver.until(lambda: driver.row_lines() == [3, 2, 1])
        await driver.press("down")
        table = driver.app.rows.table
        with path.open("a") as file:
            file.write(json.dumps(verl_row(99)) + "\n")
        await driver.until(lambda: driver.row_lines() == [4, 3, 2, 1])
        assert table.current is not None
        assert table.current.line == 2


async def test_large_step_is_shown_in_part(write: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_module, "SHOWN_ROWS", 3)
    path = write(1, *(verl_row(number) for number in range(5)))
    async with viewer(path) as driver:
        table = driver.app.rows.table
        await driver.says("row 1 of 5  mean score 2  only the first 3 are shown")
        await driver.press("right", "s", "G")
        assert (table.row_count, driver.row_lines(), table.cursor_row) == (3, [5, 4, 3, 2, 1], 2)
        await driver.press("enter", "n", "n")
        await driver.says("step 1 line 1  (5 of 5)")


async def test_broken_line_is_shown(write: Callable[..., Path]) -> None:
    async with viewer(write(1, verl_row(0), '{"score": [\x1b[31m')) as driver:
        await driver.says("broken: is not")
        await driver.press("G", "enter")
        await driver.shown(RowScreen)
        await driver.says("line 2 is not JSON")
        await driver.says("␛[31m")
        await driver.press("t", "e")
        await driver.shown(PromptScreen)


async def test_help_shows_keys_and_filters(played: Path) -> None:
    async with viewer(played, size=(120, 50)) as driver:
        await driver.press("question_mark")
        await driver.says("Follow")
        await driver.says("Filters")
        await driver.press("escape")
        await driver.until(lambda: "Filters" not in driver.text())
        await driver.press("escape")
        assert driver.screen is driver.app.rows
        await driver.press("q")
        await driver.until(lambda: not driver.app.is_running)


async def test_drawing_goes_on_while_a_file_is_read(
    write: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slow disk holds up the thread that reads, and no key."""
    path = write(1, *(verl_row(number) for number in range(3)))
    async with viewer(path) as driver:
        release, loop = asyncio.Event(), asyncio.get_running_loop()

        def slow(row: object) -> str:
            asyncio.run_coroutine_threadsafe(release.wait(), loop).result(DEADLINE_S)
            return "read at last"

        monkeypatch.setattr(row_module, "read_row", slow)
        await driver.press("enter")
        screen = await driver.shown(RowScreen)
        await driver.press("n", "n", "p")
        assert not screen.query_one(DocumentView).parts
        await driver.press("escape", "down")
        assert driver.screen is driver.app.rows
        release.set()


def fairbox(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "rollout.cli", "view", *words],
        cwd=ROOT,
        env=os.environ | {"COLUMNS": "80"},
        capture_output=True,
        text=True,
        timeout=100,
        stdin=subprocess.DEVNULL,
    )


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "path is not set and has no default"),
        (["absent"], "path is 'absent', which is neither a folder nor a file"),
        (["PLAYED", "step=3"], "step is '3'; PLAYED has 9, 10"),
        (["PLAYED", "filter=score>"], "filter is 'score>': > needs a value, at character 7"),
        (["PLAYED", "follows=true"], "did you mean follow?"),
    ],
)
def test_every_mistake_is_one_sentence(
    words: list[str], sentence: str, played: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [str(played) if word == "PLAYED" else word for word in words]
    assert main(["view", *words]) == 2
    assert sentence.replace("PLAYED", str(played)) in capsys.readouterr().err


def test_no_terminal_is_one_sentence(played: Path) -> None:
    done = fairbox(str(played))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "fairbox view: the viewer needs a terminal\n"


def test_reading_dumps_costs_no_textual() -> None:
    modules = "rollout.viewer.rows.lookup, rollout.viewer.rows.pieces"
    program = f"import sys, {modules}; print({{'textual', 'transformers'}} & {{*sys.modules}})"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "set()", done.stderr
