"""Texts of models are hostile: none runs, none breaks the page, none hides what it is."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rollout.page.bodies import MAX_CHARS
from tests.rollout.page.conftest import Tab, page_facts, page_of

RUN = "window.ran=1"
MARKUP = [
    f"<script>{RUN}</script>",
    f"</script><script>{RUN}</script>",
    f"</title></style></textarea></noscript></template><script>{RUN}</script>",
    f"<img src=x onerror={RUN}>",
    f"<svg/onload={RUN}>",
    f"<svg><script>{RUN}</script></svg>",
    f"<iframe srcdoc='<script>parent.{RUN[7:]}</script>'></iframe>",
    f"<iframe src='javascript:parent.{RUN[7:]}'></iframe>",
    f"<object data='javascript:{RUN}'></object>",
    f"<embed src='javascript:{RUN}'>",
    f"<a href='javascript:{RUN}' id=x>go</a>",
    f"<body onload={RUN}>",
    f"<details open ontoggle={RUN}>x</details>",
    f"<input autofocus onfocus={RUN}>",
    f"<video><source onerror={RUN}></video>",
    f"<math><mtext></mtext><mglyph><style><!--</style><img title='--&gt;&lt;img src=1 onerror={RUN}&gt;'>",
    f"<template><script>{RUN}</script></template>",
    f"<form action='javascript:{RUN}'><button>x</button></form>",
    "<base href='https://example.org/'>",
    "<meta http-equiv=refresh content='0;url=https://example.org/'>",
    "<link rel=stylesheet href='https://example.org/x.css'>",
    "<style>*{display:none}@import 'https://example.org/y.css'</style>",
    "<img src='https://example.org/pixel.png'>",
    "<script src='https://example.org/x.js'></script>",
    "<!-- unclosed",
    "<![CDATA[ unclosed",
    "<!doctype html><html>",
    "<plaintext>",
    "<xmp>",
    "&lt;script&gt;&#x3c;script&#x3e;",
    "{{ 7 * 7 }}{% raw %}",
    "${window.ran=1}`+window.ran=1+`",
    f"javascript:{RUN}",
    f"data:text/html,<script>{RUN}</script>",
    f"\\u003cscript\\u003e{RUN}\\u003c/script\\u003e",
    f"';{RUN}//",
    f'";{RUN}//',
    f'fairboxPart(0,"{RUN}")',
    "__proto__",
    "constructor",
    "toString",
    "hasOwnProperty",
    "then",
]
EVENTS = ("click", "focus", "blur", "load", "error", "animationstart", "transitionend", "toggle", "paste", "scroll")
MARKUP += [f"<b tabindex=0 autofocus style='animation:x' on{event}={RUN}>x</b>" for event in EVENTS]
MARKUP += [
    f"{opening}{RUN}</script>" for opening in ("<script\t>", "<SCRIPT>", "<script/x>", "<scr\0ipt>", "<script\n>")
]
MARKUP += [f"{quote}><img src=x on\terror={RUN}>" for quote in ('"', "'", "`", "-->", "]]>", "*/", "</svg>", "</math>")]
BIDI = [f"if admin{chr(code)} then {chr(code)} end" for code in (*range(0x202A, 0x202F), *range(0x2066, 0x206A))]
HIDDEN = [
    f"a{chr(code)}b"
    for code in (0xAD, 0x61C, 0x115F, 0x180E, *range(0x200B, 0x2010), 0x2028, 0x2029, 0x2060, 0x3164, 0xFE00, 0xFEFF)
]
HIDDEN += [f"a{chr(code)}b" for code in (0xE000, 0xF8FF, 0xFFF9, 0xE0001, 0xE0041, 0xE007F, 0xF0000, 0x10FFFD)]
CONTROLS = (*range(0x00, 0x09), *range(0x0B, 0x0D), *range(0x0E, 0x20), *range(0x7F, 0xA0))
CONTROL = [f"a{chr(code)}b" for code in CONTROLS]
SURROGATES = [f"a{chr(code)}b" for code in (0xD800, 0xDBFF, 0xDC00, 0xDFFF)] + ["\udc00\ud800", "\ud83d"]
TERMINAL = [
    "\x1b[31mred\x1b[0m",
    "\x1b]0;title\x07",
    "\x1b]52;c;cm0gLXJm\x07",
    "\x1b[2J\x1b[H",
    "\x9b31m",
    "\x1bP1$r\x1b\\",
    "over\rwritten",
    "\x08\x08\x08",
    "\x1b]8;;https://example.org\x1b\\link\x1b]8;;\x1b\\",
]
LONG = ["x" * 100_000, "é" * 40_000, "<b>" * 20_000, "a\n" * 20_000, "[" * 3000, "\u0301" * 5_000, "👩‍🚀" * 1_000]
OTHERS = ["", " ", "\n\n\n", "null", "NaN", "-1e999", "\ufffd", "\ufeff", "﷽" * 50, "\u202e" * 1000, "../../etc/passwd"]
PAYLOADS = [*MARKUP, *BIDI, *HIDDEN, *CONTROL, *SURROGATES, *TERMINAL, *LONG, *OTHERS]
UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ue000-\uf8ff\U000e0000-\U0010ffff]"
)
FOREIGN = (
    "main script, main iframe, main object, main embed, main form, main style, main link, main meta, main base, "
    "main video, main math, main [onerror], main [onload], main [src]:not([src^='data:image/']), "
    "main a:not([href^='#'])"
)


def row(text: str, number: int) -> dict[str, Any]:
    """A row that has a text wherever a dump has one."""
    name = text[:60]
    messages = [{"role": "user", "content": text}, {"role": name, "content": [{"type": "text", "text": text}]}]
    messages += [{"role": "assistant", "content": f"<think>{text}</think>{text}", "name": text}]
    picture = {"type": "image_url", "image_url": {"url": text}}
    call = {"turn": 1, "name": text, "arguments": {name: text, "code": text, "language": name}, "raw": text}
    call |= {"outcome": name, "text": [{"type": "text", "text": text}, picture], "run_s": 1.0, "unshown": {text: text}}
    texts = ("input", "output", "gts", "stop_reason", "cause", "data_source", "where", "error", "state", "model")
    return dict.fromkeys(texts, text) | {
        "score": 0.5,
        "uid": f"{number // 4} {name}",
        "request_id": text,
        "turns": 1,
        "messages": messages,
        "tool_calls": [call],
        "reward_parts": {text: 1.0},
        "tool_rewards": {name: text},
        "timings": {name: 1.0, "total_s": 2.0},
        "prompt_ids": [1],
        "response_ids": [2],
        "response_mask": [1],
        "logprobs": [-20.0],
        "segments": [{"kind": name, "length": 2, "weight_version": text}],
        name: name,
        "sampling": {text: [text, {text: None}]},
    }


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hostile") / "<script>window.ran=1<"
    folder.mkdir()
    rows = [row(text, number) for number, text in enumerate(PAYLOADS)]
    (folder / "1.jsonl").write_text("".join(json.dumps(each) + "\n" for each in rows), encoding="ascii")
    line = json.dumps({f"reward/{text[:60]}": 1.0 for text in PAYLOADS} | {"step": 1}) + "\n"
    (folder / "metrics.jsonl").write_text(line * 2, encoding="ascii")
    name = f"{MARKUP[0].replace('/', '')}.jsonl"
    (folder / name).write_text(json.dumps(row(MARKUP[1], 0)) + "\n", encoding="ascii")
    return page_of(folder)


@pytest.fixture
def safe(tab: Tab, page: Path) -> Iterator[Tab]:
    """A tab in which nothing may run or be asked for."""
    tab.open(page)
    yield tab
    assert tab.page.evaluate("window.ran") is None
    assert {each for each in tab.asked if not each.startswith("data:image/")} == {tab.page.url.partition("#")[0]}


def check(tab: Tab) -> str:
    """Nothing foreign is in the document, and nothing unseen in its text, which is returned."""
    assert tab.page.locator(FOREIGN).count() == 0
    text = tab.text("body")
    assert UNSEEN.findall(text) == []
    assert [each for each in ("can't be shown", "[object ", "undefined") if each in text] == []
    return text


def test_there_are_about_two_hundred() -> None:
    assert 180 <= len(set(PAYLOADS)) == len(PAYLOADS)


@pytest.mark.parametrize("view", ["run", "rows", "time", "groups", "find", "compare"])
def test_views_of_all_are_safe(safe: Tab, view: str) -> None:
    safe.go(view=view)
    check(safe)
    safe.page.keyboard.press("End")
    safe.page.wait_for_timeout(100)
    check(safe)
    safe.page.keyboard.press("?")
    check(safe)


@pytest.mark.parametrize("first", range(0, len(PAYLOADS), 20))
def test_rows_are_safe_and_show_what_was_said(safe: Tab, first: int) -> None:
    for number, payload in list(enumerate(PAYLOADS))[first : first + 20]:
        safe.go(view="row", row=number)
        safe.page.eval_on_selector_all("details", "nodes => nodes.forEach(node => { node.open = true })")
        text = check(safe)
        if payload in MARKUP and payload.isprintable():
            assert text.count(payload) >= 4
        if payload in BIDI:
            assert f"‹{ord(payload[8]):04x}›" in text
        safe.go(view="row", row=number, tab="tokens")
        safe.page.wait_for_selector(".tokens .here")
        assert "logprob -20" in check(safe)
        if number % 4 == 0:  # rows of one group
            safe.go(view="group", row=number)
            check(safe)


def test_the_policy_of_the_page_forbids_programs_and_addresses(safe: Tab) -> None:
    tries = """() => new Promise(done => setTimeout(() => {  // later, because the driver's own calls may use eval
        const found = [];
        const run = attempt => { try { attempt(); found.push("ran"); } catch (error) { found.push(error.name); } };
        run(() => eval("window.ran = 1"));
        run(() => { document.body.innerHTML += "<p>"; });
        run(() => { document.createElement("script").src = "x.js"; });
        const script = document.createElement("script");
        script.append("window.ran = 1");
        document.head.append(script);
        const picture = new Image();
        picture.onerror = () => done([...found, "refused"]);
        picture.src = "https://example.org/x.png";
    }))"""
    assert safe.page.evaluate(tries) == ["EvalError", "TypeError", "TypeError", "refused"]
    assert len(safe.problems) >= 4
    safe.problems.clear()
    safe.asked[:] = [each for each in safe.asked if not each.endswith("/x.png")]  # asked for, and refused


def test_the_file_is_ascii_but_for_ours_and_has_one_program(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert text.count("<script>") == 1
    assert len(re.findall(r"<script[ >]", text)) == text.count("</script>")
    own = len(re.sub(r'<script type="text/plain".*?</script>', "", text))
    assert own < 150_000
    assert [each["label"] for each in page_facts(page)["steps"]] == ["1", MARKUP[0].replace("/", "")]


def test_a_line_of_10_mb_is_cut_and_says_so(tab: Tab, tmp_path: Path) -> None:
    whole = 10 << 20
    record = {"input": "?", "output": "x" * whole, "messages": [{"role": "user", "content": "<b>" * (whole // 3)}]}
    (tmp_path / "1.jsonl").write_text(json.dumps(record) + "\n")
    page = page_of(tmp_path)
    tab.open(page)
    tab.go(view="row", row=0)
    text = tab.text()
    cut = re.search(r"(\d+) characters of its texts are left out", text)
    assert cut is not None
    assert 2 * whole - MAX_CHARS <= int(cut[1]) + 10 < 2 * whole
    assert len(text) < 50_000
    tab.page.click("text=/more characters: show/")
    assert len(tab.text()) > 100_000


def test_models_and_ids_of_any_kind_break_nothing(tab: Tab, tmp_path: Path) -> None:
    record = {"prompt_ids": [1, 2], "response_ids": [44, 1 << 31], "response_mask": [1, 0], "logprobs": [-1, 0]}
    strange = [
        {"prompt_ids": ids, "response_ids": ids} for ids in ([-1], ["x"], "abc", [1.5], [[1]], [True], [1 << 70])
    ]
    names = ["~nobody/model", "x" * 5000, "\0", "/", "/dev/zero", ".."]
    lines = [json.dumps(each) + "\n" for each in (*({"model": name} for name in names), record, *strange)]
    (tmp_path / "1.jsonl").write_text("".join(lines))
    for tokenizer in (None, "smollm2"):
        tab.open(page_of(tmp_path, tokenizer=tokenizer))
        tab.go(view="row", row=len(names), tab="tokens")
        tab.page.wait_for_selector(".tokens .here")
        assert ("“<”" in tab.text(".token-status")) is (tokenizer is not None)


@pytest.mark.parametrize(
    "line",
    [
        '{"score": NaN, "logprobs": [NaN], "response_ids": [1], "prompt_ids": [], "response_mask": [1]}',
        '{"score": 1e999, "turns": 1e999, "timings": {"total_s": NaN, "queue_s": 1e999}}',
        '{"turn_records": [{"began_s": NaN, "sampled_s": 1e999}], "timings": {"engine_s": NaN}}',
        '{"input": 3, "output": {"a": 1}, "error": [1], "gts": {"b": null}, "score": "x", "stop_reason": []}',
        '{"score": 9N, "turns": 9N, "started_at": 9N, "timings": {"engine_s": 9N, "total_s": 9N}}',
        '{"score": 1, "reward_parts": {"a": 9N}, "tool_calls": [{"run_s": 9N}], "turn_records": [{"began_s": 9N}]}',
        '{"prompt_ids": [1], "response_ids": [9N], "response_mask": [1], "logprobs": [-9N], "attempts": 9N}',
        '{"prompt_ids": [-1], "response_ids": ["x"], "response_mask": [null], "logprobs": [null], "segments": 7}',
        '{"prompt_ids": [1], "response_ids": [2], "response_mask": [2], "logprobs": [-1e300], "segments": [1, {}]}',
        '{"messages": 7, "tool_calls": {"a": 1}, "earlier": [1, {"prompt_ids": 3}], "model": [], "uid": {}}',
        '{"messages": [[], null, 3], "tool_calls": [null, {"arguments": [], "text": 4, "turn": "x"}], "turns": -5}',
        '{"input": ' + "[" * 900 + "]" * 900 + "}",
        "[" * 100_000,
        "\xff\xfe",
        "null",
    ],
)
def test_rows_of_any_shape_are_shown_or_told(tab: Tab, tmp_path: Path, line: str) -> None:
    line = line.replace("9N", "9" * 400)
    (tmp_path / "1.jsonl").write_bytes(line.encode("latin-1") + b"\n{}\n")
    tab.open(page_of(tmp_path))
    for state in ({"view": "rows"}, {"view": "time"}, {"view": "groups"}, {"view": "find"}, {"view": "run"}):
        tab.go(**state)
        check(tab)
    for extra in ({}, {"tab": "tokens"}):
        tab.go(view="row", row=0, **extra)
        check(tab)
    for row in (0, 1):
        tab.go(view="group", row=row)
        check(tab)
