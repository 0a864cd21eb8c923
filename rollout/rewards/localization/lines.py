"""Dialects with lines: FastContext's `<final_answer>` and the literal in `<answer>`. Pure; time is linear in the text.

    <final_answer>                              <answer>[('src/a.py', (10, 25))]</answer>
    src/a.py:10-25 (parses the header)
    src/b.py:7
    </final_answer>

Lines count from 1, and both ends belong to a span. A path without lines names the file alone.
"""

from __future__ import annotations

import re
from typing import Any

from rollout.rewards.localization.answer import MAX_LINE, Answer, LineSpan, Problems, between, strip_dot_slash
from rollout.rewards.localization.literals import read_literal

__all__ = ["parse_final_answer", "parse_line_answer"]

_SPAN = re.compile(r"L?(\d{1,10})(?:\s*-\s*L?(\d{1,10}))?")
_SPANS = re.compile(r"L?\d")
"""How the text after a path's colon must begin to be meant as lines."""
_BULLET = re.compile(r"(?:[-*•]|\d{1,4}[.)])\s+")


def parse_final_answer(text: str, *, normalise: bool = True) -> Answer:
    """`<final_answer>`: `path:first-last (note)` a line; several spans of a file may stand behind commas.

    Bullets, backticks and notes are ignored. A span that is none is left out, with its file kept.
    """
    inner = between(text, "<final_answer>", "</final_answer>")
    if inner is None:
        return Answer()
    problems, files, spans = Problems(), set(), []
    for line in inner.split("\n"):
        path, numbers = _split(line)
        if not path:
            continue
        path = strip_dot_slash(path) if normalise else path
        files.add(path)
        for number in numbers:
            span = _span(path, number)
            if span is None:
                problems.add(f"{number[:40]!r} of {path[:60]!r} is no span of lines")
            else:
                spans.append(span)
    return Answer(found=True, files=frozenset(files), lines=tuple(spans), problems=problems.all())


def _split(line: str) -> tuple[str, list[str]]:
    """(path, spans as text) of a line."""
    line = line.strip()
    if (bullet := _BULLET.match(line)) is not None:
        line = line[bullet.end() :]
    if line.endswith(")"):
        line = line.partition(" (")[0]
    line = line.strip(" \t`")
    path, colon, rest = line.rpartition(":")
    rest = rest.strip()
    if not (colon and _SPANS.match(rest)):
        return line, []
    return path.strip(" \t`"), [part.strip() for part in rest.split(",")]


def _span(path: str, text: str) -> LineSpan | None:
    match = _SPAN.fullmatch(text)
    if match is None:
        return None
    return _checked(path, int(match[1]), int(match[2] or match[1]))


def _checked(path: Any, first: Any, last: Any) -> LineSpan | None:
    """The span, if it is one."""
    if not isinstance(path, str) or any(isinstance(end, bool) or not isinstance(end, int) for end in (first, last)):
        return None
    return LineSpan(path, first, last) if 1 <= first <= last <= MAX_LINE else None


def parse_line_answer(text: str, *, normalise: bool = False) -> Answer:
    """`<answer>`: a Python literal, `[(path, (first, last)), ...]`. The first pair of tags counts.

    Spans that are none are left out; a literal of another form names nothing.
    """
    inner = between(text, "<answer>", "</answer>")
    if inner is None:
        return Answer()
    listed, problem = read_literal(inner)
    if problem is None and not isinstance(listed, list | tuple):
        problem = f"it is {type(listed).__name__}, must be a list"
    if problem is not None:
        return Answer(found=True, problems=(f"<answer>: {problem}",))
    problems, spans = Problems(), []
    for each in listed:
        span = _entry(each)
        if span is None:
            problems.add(f"{str(each)[:60]!r} is no (path, (first, last))")
        else:
            spans.append(LineSpan(strip_dot_slash(span.file), span.first, span.last) if normalise else span)
    files = frozenset(span.file for span in spans)
    return Answer(found=True, files=files, lines=tuple(spans), problems=problems.all())


def _entry(each: Any) -> LineSpan | None:
    match each:
        case [path, [first, last]]:
            return _checked(path, first, last)
    return None
