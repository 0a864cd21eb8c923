"""Lines of a trajectory on the screen: which blocks are unfolded, where a text was found, what is current. Pure.

`DocumentLayout` is a state machine without a terminal: keys in, lines out. `piece_lines` breaks tokens into lines.
"""

from __future__ import annotations

import bisect
import re
from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len

from rollout.viewer.columns import visible
from rollout.viewer.document import Block
from rollout.viewer.pieces import Piece
from rollout.viewer.wrap import Stretch, wrap

__all__ = ["MAX_MATCHES", "DocumentLayout", "DocumentLine", "Match", "PieceRun", "piece_lines", "piece_text"]

MAX_MATCHES = 10_000
"""Places of one row that are found."""


@dataclass(frozen=True, slots=True)
class DocumentLine:
    """One line: a block's title (`stretch` is None) or a part of its body."""

    block: int
    stretch: Stretch | None


@dataclass(frozen=True, slots=True)
class Match:
    """A place where the text was found."""

    block: int
    start: int
    end: int


class DocumentLayout:
    """Blocks, laid out `width` cells wide. The current line is where keys act, and what is kept in sight."""

    def __init__(self, blocks: Sequence[Block], width: int) -> None:
        self.blocks = tuple(blocks)
        self.folded = {position for position, block in enumerate(blocks) if block.folded}
        self.matches: list[Match] = []
        self.match: int | None = None
        """Position in `matches` of the current one."""
        self.line = 0
        self.lines: list[DocumentLine] = []
        self._title_lines: list[int] = []
        self._width = 0
        self.resize(width)

    @property
    def block(self) -> int:
        """Position of the block of the current line."""
        return self.lines[self.line].block if self.lines else 0

    def resize(self, width: int) -> None:
        """Lays out anew for another width; the current line stays in its block."""
        if width != self._width:
            self._width = width
            self._lay_out()

    def move(self, lines: int) -> None:
        """Moves the current line."""
        self.line = max(0, min(self.line + lines, len(self.lines) - 1))

    def move_block(self, blocks: int) -> None:
        """Moves to the title of a later or an earlier block."""
        target = max(0, min(self.block + blocks, len(self.blocks) - 1))
        if blocks < 0 and self.lines and self.lines[self.line].stretch is not None:
            target = self.block  # first to its own title
        self.line = self._title_lines[target] if self._title_lines else 0

    def toggle(self) -> None:
        """Folds the current block, or unfolds it; its title becomes the current line."""
        block = self.block
        self.folded ^= {block}
        self._lay_out()
        self.line = self._title_lines[block] if self._title_lines else 0

    def toggle_all(self) -> None:
        """Unfolds everything; folds everything where nothing is folded."""
        block = self.block
        self.folded = set() if self.folded else set(range(len(self.blocks)))
        self._lay_out()
        self.line = self._title_lines[block] if self._title_lines else 0

    def find(self, pattern: re.Pattern[str] | None) -> int:
        """Looks in all bodies and titles, folded ones too; the first place from the current block on becomes the
        current one. Returns how many there are; None forgets them."""
        first = self.block
        self.matches, self.match = [], None
        for position, block in enumerate(self.blocks):
            for match in pattern.finditer(block.body) if pattern is not None else ():
                if match.end() > match.start() and len(self.matches) < MAX_MATCHES:
                    self.matches.append(Match(position, match.start(), match.end()))
        if self.matches:
            self._show(next((i for i, match in enumerate(self.matches) if match.block >= first), 0))
        return len(self.matches)

    def next_match(self, step: int = 1) -> None:
        """The next place, or with -1 the one before; around the end."""
        if self.matches:
            self._show(((self.match or 0) + step) % len(self.matches))

    def matches_on(self, line: DocumentLine) -> list[tuple[int, int, bool]]:
        """(start, end, current) of the places on a line, in characters of its block's body."""
        if line.stretch is None or not self.matches:
            return []
        low = bisect.bisect_left(self.matches, line.block, key=lambda match: match.block)
        high = bisect.bisect_right(self.matches, line.block, key=lambda match: match.block)
        begin = bisect.bisect_right(self.matches, line.stretch.start, low, high, key=lambda match: match.end)
        found = []
        for position in range(begin, high):
            match = self.matches[position]
            if match.start >= line.stretch.end:
                break
            start, end = max(match.start, line.stretch.start), min(match.end, line.stretch.end)
            found.append((start, end, position == self.match))
        return found

    def _show(self, match: int) -> None:
        self.match = match
        place = self.matches[match]
        if place.block in self.folded:
            self.folded.discard(place.block)
            self._lay_out()
        line = self._title_lines[place.block] + 1
        while line + 1 < len(self.lines) and self.lines[line + 1].block == place.block:
            stretch = self.lines[line + 1].stretch
            if stretch is None or stretch.start > place.start:
                break
            line += 1
        self.line = line

    def _lay_out(self) -> None:
        current = self.lines[self.line] if self.lines else None
        self.lines, self._title_lines = [], []
        for position, block in enumerate(self.blocks):
            self._title_lines.append(len(self.lines))
            self.lines.append(DocumentLine(position, None))
            if position not in self.folded and block.body:
                self.lines += [DocumentLine(position, stretch) for stretch in wrap(block.body, self._width - 2)]
        self.line = self._title_lines[current.block] if current is not None else 0
        if current is not None and current.stretch is not None:
            following = self.lines[self.line + 1 :]
            for line in following:
                if line.block != current.block or line.stretch is None or line.stretch.start > current.stretch.start:
                    break
                self.line += 1


@dataclass(frozen=True, slots=True)
class PieceRun:
    """A part of a token on one line."""

    piece: int
    text: str
    """As it is shown: line breaks are seen, and a token without text has a mark."""


def piece_text(piece: Piece) -> str:
    """What is shown of a token; never empty, and with its line breaks still in it."""
    if not piece.text:
        return "·"
    shown = piece.text.replace("\r\n", "\n").expandtabs(4)
    return "\n".join(visible(part) for part in shown.replace("\n", "↵\n").split("\n"))


def piece_lines(pieces: Sequence[Piece], width: int) -> list[list[PieceRun]]:
    """Tokens in lines of at most `width` cells; a line break of a token breaks the line behind it."""
    lines: list[list[PieceRun]] = [[]]
    used = 0
    for position, piece in enumerate(pieces):
        parts = piece_text(piece).split("\n")
        for number, part in enumerate(parts):
            if number:
                lines.append([])
                used = 0
            for run in _fitted(part, width, used):
                if run.breaks:
                    lines.append([])
                    used = 0
                lines[-1].append(PieceRun(position, run.text))
                used += run.cells
    if len(lines) > 1 and not lines[-1]:
        lines.pop()
    return lines


@dataclass(frozen=True, slots=True)
class _Fit:
    text: str
    cells: int
    breaks: bool


def _fitted(text: str, width: int, used: int) -> list[_Fit]:
    """Cuts a text without line breaks to what is left of a line, and to whole lines."""
    cells = cell_len(text)
    if not text:
        return []
    if used + cells <= width:
        return [_Fit(text, cells, False)]
    if cells <= width:
        return [_Fit(text, cells, True)]
    return [
        _Fit(text[part.start : part.end], cell_len(text[part.start : part.end]), used > 0 or number > 0)
        for number, part in enumerate(wrap(text.replace(" ", "\xa0"), width))
    ]
