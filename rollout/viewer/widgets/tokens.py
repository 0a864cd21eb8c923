"""Shows a trajectory's tokens on their text: the mask, or how likely each was, with a cursor that tells of one."""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence
from enum import StrEnum
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from rollout.viewer.columns import visible
from rollout.viewer.layout import PieceRun, piece_lines
from rollout.viewer.pieces import Piece, heat
from rollout.viewer.widgets.styles import DIM, HEAT_STYLES, PIECE_STYLES, STRIPES

__all__ = ["Overlay", "TokenView"]


class Overlay(StrEnum):
    """What colours tell."""

    MASK = "mask"
    """Who wrote a token: prompt, model, tool."""
    HEAT = "heat"
    """How likely a sampled token was."""


class TokenView(ScrollView, can_focus=True):
    """`show(pieces)`; `cursor` is a token. `Changed` says that a key changed what is shown."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left,h", "move(-1)", "Token left", show=False),
        Binding("right,l", "move(1)", "Token right", show=False),
        Binding("up,k", "line(-1)", "Up", show=False),
        Binding("down,j", "line(1)", "Down", show=False),
        Binding("pageup,ctrl+b", "page(-1)", "Page up", show=False),
        Binding("pagedown,ctrl+f", "page(1)", "Page down", show=False),
        Binding("home,g", "edge(-1)", "Start", show=False),
        Binding("end,G", "edge(1)", "End", show=False),
        Binding("m", "overlay", "Mask/heat", show=False),
        Binding("b", "boundaries", "Boundaries", show=False),
        Binding("x", "unlikely", "Next unlikely", show=False),
    ]

    class Changed(Message):
        """The cursor or the overlay is another one."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.pieces: Sequence[Piece] = ()
        self.cursor = 0
        self.overlay = Overlay.MASK
        self.boundaries = True
        self._lines: list[list[PieceRun]] = [[]]
        self._first: list[int] = []
        """Piece with which each line that has one begins."""

    def show(self, pieces: Sequence[Piece]) -> None:
        """Shows other tokens; the cursor is on the first one after the prompt."""
        self.pieces = pieces
        self.cursor = next((i for i, piece in enumerate(pieces) if piece.kind != "prompt"), 0)
        self._lay_out()

    def action_move(self, pieces: int) -> None:
        self._put(self.cursor + pieces)

    def action_line(self, lines: int) -> None:
        line = max(0, min(self._line_of(self.cursor) + lines, len(self._lines) - 1))
        while 0 <= line < len(self._lines) and not self._lines[line]:
            line += 1 if lines > 0 else -1
        if 0 <= line < len(self._lines):
            self._put(self._lines[line][0].piece if lines < 0 else self._lines[line][-1].piece)

    def action_page(self, pages: int) -> None:
        self.action_line(pages * max(1, self.scrollable_content_region.height - 2))

    def action_edge(self, direction: int) -> None:
        self._put(self.cursor + direction * len(self.pieces))

    def action_overlay(self) -> None:
        self.overlay = Overlay.HEAT if self.overlay is Overlay.MASK else Overlay.MASK
        self._changed()

    def action_boundaries(self) -> None:
        self.boundaries = not self.boundaries
        self._changed()

    def action_unlikely(self) -> None:
        """To the next sampled token of the two unlikely classes."""
        for step in range(1, len(self.pieces) + 1):
            position = (self.cursor + step) % len(self.pieces)
            if (heat(self.pieces[position].logprob) or 0) >= len(HEAT_STYLES) - 2:
                self._put(position)
                return

    def about_cursor(self) -> Text:
        """The cursor's token in words."""
        if not self.pieces:
            return Text("no tokens")
        piece = self.pieces[self.cursor]
        parts = [f"{piece.kind} mask {int(piece.sampled)}", f"at {piece.position}"]
        parts.append(f"id {piece.id} {visible(repr(piece.text))}" if piece.id is not None else f"{piece.tokens} tokens")
        if piece.logprob is not None:
            name = "logprob" if piece.id is not None else "mean logprob"
            parts.append(f"{name} {piece.logprob:.4f}  p {math.exp(min(0.0, piece.logprob)):.3f}")
        if piece.weight_version:
            parts.append(f"weights {visible(piece.weight_version)}")
        return Text("  ".join(parts))

    def legend(self) -> Text:
        """What the colours mean."""
        if self.overlay is Overlay.MASK:
            names = ((PIECE_STYLES[kind], f" {kind} ") for kind in ("prompt", "sampled", "tool"))
            return Text.assemble(*((name, style) for style, name in names))
        labels = ("≥0.9", "≥0.5", "≥0.2", "≥0.05", "<0.05")
        return Text.assemble("p ", *((f" {name} ", style) for name, style in zip(labels, HEAT_STYLES, strict=True)))

    def on_resize(self, event: events.Resize) -> None:
        self._lay_out()

    def on_click(self, event: events.Click) -> None:
        line, at = self.scroll_offset.y + event.y, 0
        for run in self._lines[line] if line < len(self._lines) else ():
            at += Segment(run.text).cell_length
            if event.x < at:
                self._put(run.piece)
                return

    def render_line(self, y: int) -> Strip:
        position, width = self.scroll_offset.y + y, self.scrollable_content_region.width
        if position >= len(self._lines):
            return Strip.blank(width, self.rich_style)
        segments = [Segment(run.text, self._style(run.piece)) for run in self._lines[position]]
        return Strip(segments).adjust_cell_length(width).apply_style(self.rich_style)

    def _style(self, position: int) -> Style:
        piece = self.pieces[position]
        striped = self.boundaries and position % 2 == 1
        if self.overlay is Overlay.MASK:
            style = (STRIPES if striped else PIECE_STYLES).get(piece.kind, DIM)
        else:
            level = heat(piece.logprob)
            style = DIM if level is None else HEAT_STYLES[level]
            style = style + Style(underline=True) if striped else style
        return style + Style(reverse=True, bold=True) if position == self.cursor else style

    def _lay_out(self) -> None:
        self._lines = piece_lines(self.pieces, max(1, self.scrollable_content_region.width or 80))
        last = 0
        self._first = []
        for line in self._lines:
            last = line[0].piece if line else last
            self._first.append(last)
        self._changed()

    def _line_of(self, piece: int) -> int:
        """The line on which a token begins."""
        line = max(0, bisect.bisect_right(self._first, piece) - 1)
        while line > 0 and self._lines[line] and self._lines[line][0].piece == piece and self._has(line - 1, piece):
            line -= 1
        while line > 0 and not self._lines[line]:
            line -= 1
        return line

    def _has(self, line: int, piece: int) -> bool:
        return bool(self._lines[line]) and self._lines[line][-1].piece == piece

    def _put(self, piece: int) -> None:
        self.cursor = max(0, min(piece, len(self.pieces) - 1))
        self._changed()

    def _changed(self) -> None:
        self.virtual_size = Size(self.scrollable_content_region.width, len(self._lines))
        line, top, height = (
            self._line_of(self.cursor),
            round(self.scroll_offset.y),
            max(1, self.scrollable_content_region.height),
        )
        if not top <= line < top + height:
            self.scroll_to(y=max(0, line - height // 3), animate=False, force=True, immediate=True)
        self.refresh()
        self.post_message(self.Changed())
