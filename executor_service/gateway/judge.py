"""Whether a program printed what was expected, as SandboxFusion's judge of standard output sees it. Pure.

Line by line, without white space at the ends of lines and of the text, in lower case; two lines that are numbers may
differ by a relative 1e-5.
"""

from __future__ import annotations

__all__ = ["same_output", "shortened"]

_TOLERANCE = 1e-5
_TINY = 1e-10
"""Smallest number that differences are related to."""
_SHOWN = 1000
"""Characters of an input or output that are repeated for a case that passed."""


def same_output(printed: str, expected: str) -> bool:
    left, right = printed.strip().split("\n"), expected.strip().split("\n")
    return len(left) == len(right) and all(_same_line(a, b) for a, b in zip(left, right, strict=True))


def shortened(text: str) -> str:
    """Both ends of a long text."""
    if len(text) <= _SHOWN:
        return text
    half = (_SHOWN - 3) // 2
    return f"{text[:half]}...{text[-half:]}"


def _same_line(printed: str, expected: str) -> bool:
    a, b = printed.lower().strip(), expected.lower().strip()
    if a == b:
        return True
    try:
        x, y = float(a), float(b)
    except ValueError:
        return False
    return abs(x - y) / max(abs(y), _TINY) < _TOLERANCE
