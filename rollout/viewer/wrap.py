"""Breaks text into lines of a terminal's cells. Pure.

Every line is a stretch of the text, so that places in the text (a hit, a token) are places on the screen. Invariant:
the stretches are in order and leave nothing out but line breaks and the spaces at which a line was broken.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rich.cells import cell_len

__all__ = ["Stretch", "wrap"]


@dataclass(frozen=True, slots=True)
class Stretch:
    """Characters `start` to `end` of a text, on one line."""

    start: int
    end: int


def wrap(text: str, width: int) -> list[Stretch]:
    """Lines of at most `width` cells (at least 1), broken at spaces where there are any. No text is one empty line."""
    width = max(1, width)
    found: list[Stretch] = []
    start = 0
    while True:
        end = text.find("\n", start)
        end = len(text) if end < 0 else end
        found.extend(_wrap_line(text, start, end, width))
        if end == len(text):
            return found
        start = end + 1


def _wrap_line(text: str, start: int, end: int, width: int) -> Iterator[Stretch]:
    ascii_only = text[start:end].isascii()
    while True:
        fits = min(end, start + width) if ascii_only else _fitting(text, start, end, width)
        if fits == end:
            yield Stretch(start, end)
            return
        space = text.rfind(" ", start + 1, fits + 1)
        if space <= start:
            yield Stretch(start, fits)
            start = fits
        else:
            yield Stretch(start, space)
            start = space + 1


def _fitting(text: str, start: int, end: int, width: int) -> int:
    """Where a line that begins at `start` has to end; at least one character further."""
    if end - start <= width and cell_len(text[start:end]) <= width:
        return end
    cells = 0
    for position in range(start, end):
        cells += cell_len(text[position])
        if cells > width:
            return max(position, start + 1)
    return end
