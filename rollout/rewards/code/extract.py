"""Finds the program in an answer. Pure, in linear time.

The program is the last fenced block of its language, else the last fenced block of no language; a block that the text
ends in counts if no closed one does. Blocks of other languages (`text`, `json`, `output`) are never it. Text before
`</think>` is no answer.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_FENCE = re.compile(r"(?P<indent>[ \t]*)(?P<fence>`{3,}|~{3,})(?P<info>[^`]*)")
_THOUGHT = "</think>"
_TAGS = {
    "python": {"python", "py", "python3", "py3"},
    "cpp": {"cpp", "c++", "cc", "cxx"},
    "nodejs": {"nodejs", "node", "javascript", "js"},
    "typescript": {"typescript", "ts"},
    "go": {"go", "golang"},
    "csharp": {"csharp", "c#", "cs"},
    "bash": {"bash", "sh", "shell"},
    "rust": {"rust", "rs"},
    "kotlin_script": {"kotlin", "kts", "kt"},
    "julia": {"julia", "jl"},
    "ruby": {"ruby", "rb"},
    "R": {"r"},
}


@dataclass(frozen=True, slots=True)
class Extracted:
    """A program that was found."""

    code: str
    """Empty if there is none."""
    fenced: bool
    """True if it stands in a block that is closed; one that the text ends in may have been cut."""


@dataclass(frozen=True, slots=True)
class _Block:
    tag: str
    """First word behind the fence, in small letters."""
    code: str
    closed: bool


def extract_code(text: str, language: str = "python", *, whole: bool = False) -> Extracted:
    """The program of an answer. `whole`: a text without any fence is one itself."""
    text = text.rpartition(_THOUGHT)[2]
    blocks = list(_blocks(text))
    if not blocks and whole and text.strip():
        return Extracted(text, fenced=False)
    blocks = [block for block in blocks if block.code.strip()]
    for tags in (_TAGS.get(language, {language.lower()}), {""}):
        of_tags = [block for block in blocks if block.tag in tags]
        closed = [block for block in of_tags if block.closed]
        if of_tags:
            return Extracted((closed or of_tags)[-1].code, fenced=bool(closed))
    return Extracted("", fenced=False)


def _blocks(text: str) -> Iterator[_Block]:
    """Fenced blocks: from a line that begins with a fence to one that is a fence alone, at least as long."""
    opened: re.Match[str] | None = None
    lines: list[str] = []
    for line in text.split("\n"):
        line = line.removesuffix("\r")
        found = _FENCE.fullmatch(line)
        if opened is None:
            opened, lines = found, []
        elif found and not found["info"].strip() and found["fence"].startswith(opened["fence"]):
            yield _block(opened, lines, closed=True)
            opened = None
        else:
            lines.append(_without(opened["indent"], line))
    if opened is not None:
        yield _block(opened, lines, closed=False)


def _block(opened: re.Match[str], lines: list[str], *, closed: bool) -> _Block:
    words = opened["info"].lower().replace("{", " ").replace("}", " ").split()
    return _Block(words[0].lstrip(".") if words else "", "\n".join(lines) + "\n", closed)


def _without(indent: str, line: str) -> str:
    """The line without the indent of its fence: a block inside a list is indented as its fence is."""
    return line.removeprefix(indent) if line.strip() else line.strip()
