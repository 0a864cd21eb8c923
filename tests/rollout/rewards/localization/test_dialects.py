"""Answers in every dialect: what is read from them, and that nothing raises or takes more than linear time."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout.rewards.localization.answer import Answer, LineSpan
from rollout.rewards.localization.dialects import (
    parse_code_block,
    parse_files_tag,
    parse_final_answer,
)
from rollout.rewards.reasoning import split_reasoning

PARSERS: list[Callable[[str], Answer]] = [parse_code_block, parse_files_tag, parse_final_answer]


@pytest.mark.parametrize(
    ("text", "files"),
    [
        ("<files>\na.py\n ./b.py \n\n</files>", {"a.py", "b.py"}),
        ('I say <files>["./a.py", "b.py"]</files> and <files>c.py</files>', {"a.py", "b.py"}),
        ("<files>[a.py]</files>", set()),
        ('<files>["a.py", 1]</files>', set()),
        ("<files>" + "[" * 5000 + "</files>", set()),
        ("<files></files>", set()),
    ],
)
def test_files_tag(text: str, files: set[str]) -> None:
    answer = parse_files_tag(text)
    assert answer.found
    assert answer.files == files


def test_tags_that_are_not_closed_are_no_answer() -> None:
    for parse in PARSERS[1:]:
        assert parse("<files>a <final_answer>a:1") == Answer()
    assert not parse_files_tag("</files><files>a.py").found
    assert parse_files_tag("<files>./a.py</files>", normalise=False).files == {"./a.py"}


def test_code_block_reads_classes_and_methods() -> None:
    text = "```\na.py\nclass: C\nfunction: m(self, x)\n\nmethod: D.n()\n  function: f extra words\n```"
    answer = parse_code_block(text)
    assert answer.files == {"a.py"}
    assert answer.entities == {"a.py:C.m(self,", "a.py:D.n", "a.py:f"}  # a name ends at white space
    assert answer.modules == {"a.py:C", "a.py:D", "a.py:f"}


def test_code_block_quirks() -> None:
    assert parse_code_block("a.py\nb.py").files == set()
    assert parse_code_block("a.py\nb.py", bare_files=True).files == {"a.py", "b.py"}
    init = "a.py\nclass: C\nfunction: __init__"
    assert parse_code_block(init).entities == {"a.py:C.__init__"}
    dropped = parse_code_block(init, drop_init=True)
    assert dropped.entities == dropped.modules == {"a.py:C"}
    assert parse_code_block("./a.py\nfunction: f", normalise=True).entities == {"a.py:f"}
    assert parse_code_block("src/a.js\nfunction: f") == Answer()


def test_code_block_skips_what_names_nothing() -> None:
    answer = parse_code_block("function: early\na.py\nfunction:\nfunction: ()\nclass: C\nfunction: A.\nfunction: .b")
    assert answer.entities == {"a.py:", "a.py:A.", "a.py:b"}


def reference_code_block(text: str, drop_init: bool) -> tuple[set[str], set[str], set[str]] | None:
    """The rules as the reference states them, in the plainest way; None where it raises."""
    places: list[tuple[str, str | None, str]] = []
    file: str | None = None
    owner: str | None = None
    for raw in text.strip("` \n").strip().split("\n"):
        line = raw.strip()
        if not line:
            owner = None
        elif line.endswith(".py"):
            file, owner = line, None
        elif line.startswith("class:"):
            owner = line[6:].strip()
        elif line.startswith("function:") or line.startswith("method:"):
            if not file:
                continue
            words = line.split(":", 1)[1].strip().split()
            if not words:
                return None
            name = words[0].strip("() ")
            places.append((file, *name.split(".", 1)) if "." in name else (file, owner, name))  # type: ignore[arg-type]
    entities = {f"{f}:{c}.{n}" if c else f"{f}:{n}" for f, c, n in places}
    if drop_init:
        entities = {e[: -len(".__init__")] if e.endswith(".__init__") else e for e in entities}
    modules = {e.rsplit(".", 1)[0] if "." in e.split(":")[-1] else e for e in entities}
    return {f for f, _, _ in places}, modules, entities


LINES = st.sampled_from(
    (
        *("a.py", "./b.py", "d/c.py", "class: C", "class:", "function: f", "function: C.m", "method: A.B.c", "", "```"),
        *("function: __init__", "function: C.__init__", "function:()", "method: x()", "text", "class: x.py", "a:b.py"),
    )
)


@given(st.lists(LINES, max_size=12), st.booleans())
def test_code_block_reads_as_the_reference_does(lines: list[str], drop_init: bool) -> None:
    text = "\n".join(lines)
    answer = parse_code_block(text, drop_init=drop_init)
    found = tuple(set(ids) for ids in (answer.files, answer.modules, answer.entities))
    assert found == reference_code_block(text, drop_init)


def test_final_answer() -> None:
    text = """thinking aloud
<final_answer>
./src/a.py:10-25 (parses the header: see line 3)
- `src/b.py:7`
2. src/c.py:L1-L3, 9-12 (two places)
src/d.py
src/e.py:9-7
src/f.py:12-x
C:odd
</final_answer>"""
    answer = parse_final_answer(text)
    assert answer.files == {f"src/{name}.py" for name in "abcdef"} | {"C:odd"}
    assert answer.lines == (
        LineSpan("src/a.py", 10, 25),
        LineSpan("src/b.py", 7, 7),
        LineSpan("src/c.py", 1, 3),
        LineSpan("src/c.py", 9, 12),
    )


PIECES = st.sampled_from(
    (
        *("<files>", "</files>", "<think>", "</think>", "./"),
        *("<final_answer>", "</final_answer>", "function: f", "class:", "a.py", "1-2", "9" * 20, "\ud800", "\0"),
        *"[](){'\"\\,:\n` -",
    )
)


@given(st.lists(PIECES | st.text(max_size=8), max_size=25).map("".join))
def test_no_text_raises(text: str) -> None:
    for parse in PARSERS:
        parse(text)
    split_reasoning(text)


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "piece",
    ["(", "[[", "'", "\\", "a.py\n", "function: f\n", "<files>", " ", "`", "a:", "1,", "- ", "{'a':"],
)
def test_time_is_linear(piece: str) -> None:
    many = piece * (400_000 // len(piece))
    for opening, closing in (("", ""), ("<files>", "</files>"), ("<final_answer>", "</final_answer>")):
        for parse in PARSERS:  # anything quadratic would take minutes
            parse(opening + many + closing)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("said", (None, "said")),
        ("<think>\nwhy\n</think>\n\nsaid", ("why", "said")),
        ("why\n</think>said", ("why", "said")),
        ("<think>a</think>b<think>c</think>d", ("a", "d")),
        ("<think>open", (None, "<think>open")),
    ],
)
def test_thoughts_are_told_apart(text: str, expected: tuple[str | None, str]) -> None:
    assert split_reasoning(text) == expected
