"""Pages in a real browser, opened from disk: what they show, and that the keyboard alone reaches it."""

from __future__ import annotations

import dataclasses
import json
import math
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rollout.loop import ToolCallRecord
from rollout.page.agreement import LEAST_ROWS
from rollout.rewards import Reward
from rollout.tokens import ChatTemplate, HubTokenizer
from rollout.tools import ToolOutcome
from rollout.viewer.rows.filters import parse_filter
from rollout.viewer.rows.groups import group_rows
from rollout.viewer.rows.index import StepFile
from rollout.viewer.rows.pieces import decoded_pieces
from rollout.viewer.rows.summary import extra_names
from tests.executor.servers import SLOWNESS, running
from tests.interop.results import result, sampled, tool
from tests.rollout.page.conftest import Tab, exact, page_of, write_dump
from tests.rollout.page.test_figures import results, summarize
from tests.rollout.viewer.conftest import play

ROOT = Path(__file__).parents[3]
FILTERS = (
    "score>0.5",
    "score=none",
    "not masked",
    "masked=yes outcome=ok",
    "outcome!=ok",
    "tool=echo tool_errors>=1",
    "turns>1 stop_reason=answered",
    "stop_reason!=answered",
    'text~"###+ -?1"',
    "漢字",
    "output~Traceback",
    'calls="fail"',
    "input=Janet",
    "uid~^0-",
    "not not line<=3 index>1",
    "reward_parts.gsm8k=1",
    "logprob<0 response_tokens>10",
    "error~away",
    "broken",
)


@pytest.fixture(scope="module", autouse=True)
def played(chat: ChatTemplate, tokenizer: HubTokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page of the steps 9 and 10, beside its dumps; made before the browser's driver takes the event loop."""
    folder = tmp_path_factory.mktemp("page")
    play(chat, tokenizer, folder, 9, right=1)
    play(chat, tokenizer, folder, 10, right=4)
    return page_of(folder)


def test_the_run_has_the_numbers_of_the_summary(tab: Tab, tmp_path: Path) -> None:
    write_dump(tmp_path, *results())
    summary = summarize(tmp_path, *results(), complete=False)
    tab.open(page_of(tmp_path))
    shown = exact(tab, "[data-figure]", "figure")
    assert {name: summary[name] for name in shown} == shown
    assert {"score_mean", "finished", "scored", "masked", "turns", "planned", "wall_s"} <= set(shown)
    assert exact(tab, "[data-part]", "part")["a"] == summary["metrics"]["reward/a"]
    assert "interrupted" in tab.text("#unfinished")
    assert tab.asked == [(tmp_path / "report.html").as_uri()]


@pytest.mark.parametrize("view", ["run", "rows", "time", "groups", "find", "compare"])
def test_every_view_opens(tab: Tab, played: Path, view: str) -> None:
    tab.open(played)
    tab.go(view=view)
    assert "can't be shown" not in tab.text()
    assert len(tab.text()) > 100


def test_curves_of_training_are_drawn(tab: Tab, tmp_path: Path) -> None:
    write_dump(tmp_path / "rollouts", *results(), step=1)
    write_dump(tmp_path / "rollouts", *results()[:2], step=2)
    lines = [{"step": step, "reward": step / 3, "approx_kl": 0.1, "time/update_s": 1.0} for step in range(1, 9)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    tab.open(page_of(tmp_path))
    names = [name.partition("\n")[0] for name in tab.all("figure.small figcaption")]
    assert names[-2:] == ["reward", "approx_kl"]
    assert names[0] == "score"
    assert tab.page.locator("figure:has(b:text-is('reward')) circle").count() == 8


@pytest.mark.parametrize("expression", FILTERS)
def test_filters_pass_the_rows_that_the_viewer_passes(tab: Tab, played: Path, expression: str) -> None:
    rows = []
    for step in (9, 10):
        file = StepFile(played.with_name(f"{step}.jsonl"))
        while not file.advance():
            pass
        found = parse_filter(expression, extra_names(file.rows))
        rows += [f"{step}:{row.line}" for row in file.rows if found.matches(row)]
    tab.open(played)
    tab.go(view="rows", filter=expression)
    assert [":".join(line.split()[:2]) for line in tab.all(".list .line")] == rows


def test_a_wrong_filter_is_told(tab: Tab, played: Path) -> None:
    tab.open(played)
    tab.go(view="rows", filter="scor>1")
    assert "scor is not a field" in tab.text("#state")
    assert "12 of 12 rows" in tab.text()


def test_groups_have_the_advantages_of_the_viewer(tab: Tab, played: Path) -> None:
    file = StepFile(played.with_name("9.jsonl"))
    while not file.advance():
        pass
    (group, *_) = (each for each in group_rows(file.rows) if each.std)
    tab.open(played)
    tab.go(view="group", row=group.rows[0].line - 1)
    assert tab.all('.member [data-of="advantage"]') == [f"{group.advantage(row):.3f}" for row in group.rows]


def test_a_trajectory_reads_as_people_read_it(tab: Tab, played: Path) -> None:
    tab.open(played)
    tab.go(view="row", row=1)
    text = tab.text()
    assert "turn 1" in text
    assert "✗ program_error" in text
    assert tab.all(".call .code") == ["fail"]
    assert "Traceback\n␛[31mred" in text
    assert "⟨call 1⟩" in text


def test_thoughts_are_folded_and_cuts_are_marked(tab: Tab, tmp_path: Path) -> None:
    said = {"role": "assistant", "content": "hm, hm</think>\n\n6"}
    write_dump(tmp_path, result([1], sampled([2]), messages=({"role": "user", "content": "?"}, said)))
    tab.open(page_of(tmp_path))
    tab.go(view="row", row=0)
    assert "hm, hm" not in tab.text()
    tab.page.click("details.thinking summary")
    assert "hm, hm" in tab.text()


def tokens_of(tab: Tab) -> list[tuple[str, str]]:
    """(text, classes) of the tokens that are shown, each once."""
    tab.page.wait_for_selector(".tokens .here")  # they are laid out when the page knows how wide it is
    script = "nodes => nodes.map(node => [node.dataset.token, node.textContent, node.className])"
    found: dict[str, tuple[str, str]] = {}
    for token, text, classes in tab.page.eval_on_selector_all(".tokens .t[data-token]", script):
        found[token] = (found.get(token, ("", ""))[0] + text, classes)
    return list(found.values())


def test_tokens_are_those_of_the_dump(tab: Tab, chat: ChatTemplate, tokenizer: HubTokenizer, tmp_path: Path) -> None:
    prompt, said = chat.encode("Six ☃?\n"), chat.encode("漢字 é 👩‍🚀 ok")
    earlier = result(chat.encode("Before."), sampled(chat.encode("cut"))).trajectory
    whole = result(prompt, sampled(said, version="w7", logprob=-1.5), tool(chat.encode("tool\n")))
    (record,) = write_dump(tmp_path, dataclasses.replace(whole, earlier=(earlier,)))
    record["trainer_logprobs"] = [each - 0.25 if each else 0.0 for each in record["logprobs"]]
    record["earlier"][0]["trainer_logprobs"] = record["earlier"][0]["logprobs"]
    (tmp_path / "1.jsonl").write_text(json.dumps(record) + "\n")
    tab.open(page_of(tmp_path, tokenizer="smollm2"))
    tab.go(view="row", row=0, tab="tokens")
    found = tokens_of(tab)
    kinds = [
        ("k0", "k1", "k2")[("prompt", "sampled", "tool").index(piece.kind)] for piece in _pieces(tokenizer, record)
    ]
    assert [next(name for name in classes.split() if name[0] == "k") for _, classes in found] == kinds
    text = "".join(text.replace("↵", "\n") for text, _ in found if text != "·")
    assert text == "".join(piece.text for piece in _pieces(tokenizer, record)).replace("\u200d", "‹200d›")
    assert [" cut" in classes for _, classes in found] == [at < len(kinds) - _count(record) for at in range(len(kinds))]
    assert tab.all(".surprise .line")[0].split()[:2] == ["1.", "-1.50"]
    assert tab.page.locator(".surprise .line").first.is_visible()
    tab.page.locator(".tokens .k1:not(.cut)").first.click()
    status = tab.text(".token-status")
    assert f"id {said[0]}" in status
    assert "mask 1" in status
    assert f"logprob -1.50  p {math.exp(-1.5):.3f}" in status
    assert f"trainer -1.75  ratio {math.exp(-0.25):.4f}" in status
    assert "weights w7" in status


def _count(part: dict[str, Any]) -> int:
    return len(part["prompt_ids"]) + len(part["response_ids"])


def _pieces(tokenizer: HubTokenizer, record: dict[str, Any]) -> list[Any]:
    def decode(ids: Any) -> str:
        return str(tokenizer.decode(list(ids)))

    return [piece for part in (*record["earlier"], record) for piece in decoded_pieces(part, decode)]


def test_without_a_tokenizer_ids_are_shown_and_the_reason(tab: Tab, tmp_path: Path) -> None:
    write_dump(tmp_path, *results())
    tab.open(page_of(tmp_path))
    tab.go(view="row", row=0, tab="tokens")
    assert "no tokenizer is known for model 'none'" in tab.text()
    assert [text for text, _ in tokens_of(tab)] == [f"‹{each}›" for each in range(1, 8)]


def test_bodies_beside_the_page_are_read_when_they_are_opened(
    tab: Tab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rollout.page.writer.MAX_INLINE", 0)
    monkeypatch.setattr("rollout.page.parts.PART_BYTES", 1)
    monkeypatch.setattr("rollout.page.parts.CHUNK_BYTES", 1)
    write_dump(tmp_path, *results())
    tab.open(page_of(tmp_path, to=tmp_path / "a run #1 50%.html"))
    assert len(tab.asked) == 1
    tab.go(view="row", row=2)
    assert "0.2" in tab.text()
    assert [each.rpartition("/")[2] for each in tab.asked[1:]] == ["4.js"]
    (tmp_path / "a run #1 50%-parts" / "0.js").unlink()
    tab.go(view="row", row=0)
    assert "-parts/0.js can't be read" in tab.text()
    tab.problems.clear()


def test_the_keyboard_alone_reaches_everything(tab: Tab, played: Path) -> None:
    keys = tab.page.keyboard
    tab.open(played)
    keys.press("2")
    tab.page.wait_for_selector('body[data-view="rows"]')
    keys.press("ArrowDown")
    keys.press("Enter")
    tab.page.wait_for_selector('body[data-view="row"]')
    assert "step 9, line 2" in tab.text()
    keys.press("n")
    tab.page.wait_for_selector("text=step 9, line 3")
    keys.press("t")
    tab.page.wait_for_selector(".tokens .here")
    before = tab.text(".token-status")
    keys.press("ArrowRight")
    assert tab.text(".token-status") != before
    keys.press("u")
    tab.page.wait_for_selector(".members")
    keys.press("Escape")
    tab.page.wait_for_selector(".tokens .here")
    keys.press("2")
    tab.page.wait_for_selector('body[data-view="rows"]')
    keys.press("/")
    keys.type("score=1")
    keys.press("Enter")
    tab.page.wait_for_selector("text=5 of 12 rows")
    for view in ("run", "rows", "time", "groups", "find", "compare"):
        tab.go(view=view)
        script = "nodes => nodes.filter(node => node.tabIndex < 0).map(node => node.outerHTML)"
        assert tab.page.eval_on_selector_all("a, button, select, input, summary, .list", script) == []


def test_long_lists_hold_only_the_lines_that_are_seen(tab: Tab, tmp_path: Path) -> None:
    lines = [json.dumps({"score": number, "input": "?", "output": "!"}) for number in range(50_000)]
    (tmp_path / "1.jsonl").write_text("\n".join(lines) + "\n")
    tab.open(page_of(tmp_path))
    tab.go(view="rows", sort="-score")
    assert tab.page.locator(".list .line").count() < 100
    tab.page.keyboard.press("End")
    tab.page.wait_for_selector(".line[data-i='49999'][aria-selected=true]")
    assert tab.all(".line[data-i='49999']")[0].split()[:2] == ["1", "0"]


def test_findings_name_rewards_and_tests_that_tell_nothing(tab: Tab, tmp_path: Path) -> None:
    parts = ({"format": 1.0, "code/case/a": float(number % 2), "code/case/<b>": 0.0} for number in range(LEAST_ROWS))
    given = [Reward(each["code/case/a"], each) for each in parts]
    found = [dataclasses.replace(result([1], sampled([2]), uid="<i>u</i>"), reward=reward) for reward in given]
    write_dump(tmp_path, *found)
    tab.open(page_of(tmp_path))
    tab.go(view="find")
    cells = "section.card:has(h3:text-is('{}')) td"
    assert tab.all(cells.format("Parts of the reward that agree with nothing")) == ["format", "100", "always 1", "0"]
    suspects = tab.all(cells.format("Tests that no answer passes, though some pass others"))
    assert suspects == ["<i>u</i>", "code/case/<b>", "step 1, line 1"]


def test_a_call_is_run_again_by_its_line(tab: Tab, tmp_path: Path) -> None:
    text = 'it\'s "$HOME" `id` \\ \x1b[201~ \u202e ☃ \t end'
    calls = tuple(
        ToolCallRecord(1, "tool", arguments, "{}", ToolOutcome.OK, "?")
        for arguments in ({"code": f"print(ascii({text!r}))\nprint('- ' * 2)"}, {"command": f"echo '{text[4:]}'"})
    )
    write_dump(tmp_path, result([1], sampled([2]), tool_calls=calls))
    tab.open(page_of(tmp_path))
    tab.go(view="row", row=0)
    lines = tab.page.locator(".exec").all_text_contents()
    assert [line.isprintable() or "\n" in line for line in lines] == [True, True]
    assert "\x1b" not in "".join(lines)
    with running() as server:
        run = f"exec {shlex.quote(sys.executable)} -m rollout.cli exec --executor {server.target}"
        answers = [
            subprocess.run(
                ["bash", "-c", line.replace("fairbox exec", run, 1)],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=130 * SLOWNESS,
            )
            for line in lines
        ]
    assert answers[0].stdout == f"{text!a}\n- - \n", answers[0].stderr
    assert answers[1].stdout == f"{text[4:]}\n", answers[1].stderr
