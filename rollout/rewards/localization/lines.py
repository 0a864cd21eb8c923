"""The dialect with lines: FastContext's `<final_answer>`. Pure; time is linear in the text.

    <final_answer>
    src/a.py:10-25 (parses the header)
    src/b.py:7
    </final_answer>

Lines count from 1, and both ends belong to a span. A path without lines names the file alone.
"""

from __future__ import annotations

import re

from rollout.rewards.localization.answer import MAX_LINE, Answer, LineSpan, Problems, between, strip_dot_slash

_SPAN = re.compile(r"L?(\d{1,10})(?:\s*-\s*L?(\d{1,10}))?")
_SPANS = re.compile(r"L?\d")
"""Beginning of the text after a path's colon by which it means lines."""
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
    first, last = int(match[1]), int(match[2] or match[1])
    return LineSpan(path, first, last) if 1 <= first <= last <= MAX_LINE else None
