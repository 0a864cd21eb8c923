"""Finds the code in a completion: fenced blocks, blocks that never end, and text that looks like code. Pure.

Uses the standard library alone and imports nothing of fairbox: it is also put into a sandbox, next to a client's own
logic of extraction.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

FENCED, INCOMPLETE, HEURISTIC = 30, 20, 10
"""Priorities; a client's own logic may use any."""

_FENCE = "```"
_BEFORE = ("import", "from", "#")
"""Lines right above a definition that belong to it begin so."""
_QUERY = re.compile(r"^[ \t]*(?:select|with\s[^\n]+as)[^;]*", re.MULTILINE | re.IGNORECASE)
_TAGS = {
    "python": "python py python3",
    "cpp": "cpp c++",
    "nodejs": "nodejs javascript js",
    "typescript": "typescript ts",
    "go": "go golang",
    "csharp": "csharp c#",
    "bash": "bash sh shell",
    "rust": "rust rs",
    "D_ut": "d",
    "julia": "julia jl",
    "kotlin_script": "kotlin kts",
    "R": "r",
    "ruby": "ruby rb",
}
_LANGUAGES = {tag: language for language, tags in _TAGS.items() for tag in tags.split()}


@dataclass
class CodeBlock:
    """A piece of code in a completion. The highest priority wins."""

    priority: int
    code: str
    language: str = ""


def language_of(tag: str) -> str:
    """SandboxFusion's name for what stands behind a fence; the tag itself where it is not known."""
    word = tag.strip().lower()
    return _LANGUAGES.get(word, word)


def extract_fenced_code(completion: str) -> list[CodeBlock]:
    """Blocks between a fence, wherever in its line it is, and a line that begins with one. In linear time."""
    blocks, lines, at = [], completion.split("\n"), 0
    while at < len(lines):
        _, fence, tag = lines[at].partition(_FENCE)
        if fence:
            end = next((i for i in range(at + 2, len(lines)) if lines[i].lstrip().startswith(_FENCE)), None)
            if end is None:
                break  # nothing after this line ends a block
            blocks.append(CodeBlock(FENCED, "\n".join(_without_blank_end(lines[at + 1 : end])), language_of(tag)))
            # What follows the closing fence in its line may open the next block.
            lines[end] = lines[end].partition(_FENCE)[2]
            at = end
        else:
            at += 1
    return blocks


def extract_incomplete_fenced_code(completion: str) -> list[CodeBlock]:
    """From the first fence to the end."""
    _, fence, rest = completion.partition(_FENCE)
    tag, newline, code = rest.partition("\n")
    return [CodeBlock(INCOMPLETE, code, language_of(tag))] if fence and newline else []


def extract_heuristic_code(completion: str, language: str = "") -> list[CodeBlock]:
    """Returns what looks like code of `language` in plain text."""
    lines = [line for line in completion.split("\n") if line.strip()]
    text = "".join(line + "\n" for line in lines)
    if language == "python":
        found = _definitions(lines)
    elif language == "sql":
        found = _QUERY.findall(text)
    elif language == "bash":
        found = [text]
    else:
        found = []
    return [CodeBlock(HEURISTIC, code, language) for code in found]


def _definitions(lines: list[str]) -> list[str]:
    """Functions and classes with the imports and comments right above them."""
    found, start, at = [], 0, 0
    while at < len(lines):
        if lines[at].startswith(("def ", "class ")):
            end = next((i for i in range(at + 1, len(lines)) if not lines[i][0].isspace()), len(lines))
            if end > at + 1:
                found.append("".join(line + "\n" for line in lines[start:end]))
            start = at = end
            continue
        at += 1
        if not lines[at - 1].startswith(_BEFORE):
            start = at
    return found


def _without_blank_end(lines: list[str]) -> list[str]:
    while len(lines) > 1 and not lines[-1].strip():
        lines.pop()
    return lines


def all_blocks(completion: str, language: str) -> list[CodeBlock]:
    return (
        extract_fenced_code(completion)
        + extract_heuristic_code(completion, language)
        + extract_incomplete_fenced_code(completion)
    )


def best_code(blocks: list[CodeBlock], language: str | None = None) -> str:
    """Code of the highest priority: the first block in `language`, else the first; empty if there are no blocks."""
    best = max(blocks, key=lambda block: (block.priority, block.language == language), default=None)
    return best.code if best else ""
