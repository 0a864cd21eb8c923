"""Reads Python literals that a model wrote: lists, tuples and sets of texts and numbers, nothing else. Pure.

`ast.literal_eval` alone takes time and memory that grow faster than some texts, and warns about others. Here the text
is first read token by token: what is longer, deeper or of another kind than an answer needs is refused before.
"""

from __future__ import annotations

import ast
import re
from typing import Any

__all__ = ["MAX_CHARS", "read_literal"]

MAX_CHARS = 64 * 1024
"""Far more than the longest list of places in a repository that anyone answers with."""
_MAX_DEPTH = 8
_TOKEN = re.compile(
    r"""(?P<space>\s+)
      | (?P<text>'(?:[^'\\\n]|\\.)*' | "(?:[^"\\\n]|\\.)*")
      | (?P<open>[\[({])
      | (?P<close>[\])}])
      | (?P<other>, | : | -?\d{1,18}(?![\w.]) | (?:None|True|False)(?!\w))""",
    re.VERBOSE,
)
_ESCAPE = re.compile(r"\\(.)")
_KNOWN_ESCAPES = "\\'\"abfnrtv"


def read_literal(text: str) -> tuple[Any, str | None]:
    """(value, problem): the value is None where there is a problem. Never raises."""
    text = text.strip()
    if len(text) > MAX_CHARS:
        return None, f"it has {len(text)} characters, at most {MAX_CHARS} are read"
    parts: list[str] = []
    position = depth = 0
    while position < len(text):
        token = _TOKEN.match(text, position)
        if token is None:
            return (
                None,
                f"it is no list of texts and numbers at character {position}: {text[position : position + 24]!r}",
            )
        depth += bool(token["open"]) - bool(token["close"])
        if depth > _MAX_DEPTH:
            return None, "it is nested too deeply"
        parts.append(_ESCAPE.sub(_escape, token[0]) if token["text"] else " " if token["space"] else token[0])
        position = token.end()
    try:
        return ast.literal_eval("".join(parts)), None
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError) as error:
        return None, f"it is no list of texts and numbers: {error}"


def _escape(match: re.Match[str]) -> str:
    """An unknown escape stands for itself, as in Python, but without its warning."""
    return match[0] if match[1] in _KNOWN_ESCAPES else "\\" + match[0]
