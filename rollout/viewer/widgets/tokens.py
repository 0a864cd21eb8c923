"""Shows a trajectory's tokens on their text: the mask, or how likely each was, with a cursor that tells of one."""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

from rich.cells import cell_len, chop_cells
from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Size
from textual.scroll_view import ScrollView
from textual.strip import Strip

from rollout.viewer.rows.columns import visible
from rollout.viewer.rows.pieces import TokenPiece, heat

Run = tuple[int, str]
"""A token's position, and what of it is on one line."""

# Colours also differ in brightness or weight, so that nothing is told by hue alone.
DIM = Style.parse("#8a94a2")
MASK_STYLES: Mapping[str, tuple[Style, Style]] = {
    "prompt": (DIM, Style.parse("#b0b9c6")),
    "sampled": (Style.parse("#d9ffe0 on #17452a"), Style.parse("#d9ffe0 on #266b42")),
    "tool": (Style.parse("#ffe9c4 on #4a3312"), Style.parse("#ffe9c4 on #6d4d1d")),
}
"""By kind, of which only what was sampled is trained on; the second of each is that of every second token."""
HEATS = {
    "≥0.9": Style.parse("#a9c7b1 on #10241a"),
    "≥0.5": Style.parse("#e4f0c0 on #3d4a12"),
    "≥0.2": Style.parse("#fff0c0 on #7a5a0a"),
    "≥0.05": Style.parse("#ffe4d0 on #a04410"),
    "<0.05": Style.parse("bold #ffffff on #c01830"),
}
"""By probability, from likely to unlikely: the classes of `heat()`."""


class TokenView(ScrollView, can_focus=True):
    """`show(pieces)`; `cursor` is a token. `changed` is called when it is another one, or colours tell other things."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left", "move(-1)", "Token left", show=False),
        Binding("right", "move(1)", "Token right", show=False),
        Binding("up", "line(-1)", "Up", show=False),
        Binding("down", "line(1)", "Down", show=False),
        Binding("pageup", "line(-20)", "Page up", show=False),
        Binding("pagedown", "line(20)", "Page down", show=False),
        Binding("home", "move(-1000000)", "Start", show=False),
        Binding("end", "move(1000000)", "End", show=False),
        Binding("m", "colour('heat')", "Mask/heat", show=False),
        Binding("b", "colour('boundaries')", "Boundaries", show=False),
        Binding("x", "unlikely", "Next unlikely", show=False),
    ]

    def __init__(self, changed: Callable[[], None], *, id: str) -> None:
        super().__init__(id=id)
        self._on_change = changed
        self.pieces: Sequence[TokenPiece] = ()
        self.cursor = 0
        self.shown = {"boundaries"}
        """`heat`, so that colours tell how likely a token was, and not who wrote it; `boundaries` of tokens."""
        self._problem = "they are read"
        self._lines: list[list[Run]] = [[]]

    def show(self, pieces: Sequence[TokenPiece], problem: str = "") -> None:
        """Shows other tokens, or why there are none; the cursor is on the first one after the prompt."""
        self.pieces, self._problem = pieces, problem
        self.cursor = next((i for i, piece in enumerate(pieces) if piece.kind != "prompt"), 0)
        self._lay_out()

    def action_move(self, pieces: int) -> None:
        self._put(self.cursor + pieces)

    def action_line(self, lines: int) -> None:
        line = max(0, min(self._line_of(self.cursor) + lines, len(self._lines) - 1))
        if self.pieces:
            piece = self._lines[line][0 if lines < 0 else -1][0]
            self._put(piece if piece != self.cursor else piece + (1 if lines > 0 else -1))

    def action_colour(self, name: str) -> None:
        self.shown ^= {name}
        self._changed()

    def action_unlikely(self) -> None:
        """To the next sampled token of the two unlikely classes."""
        for step in range(1, len(self.pieces) + 1):
            position = (self.cursor + step) % len(self.pieces)
            if (heat(self.pieces[position].logprob) or 0) >= len(HEATS) - 2:
                self._put(position)
                return

    def about_cursor(self) -> Text:
        """The cursor's token in words."""
        if not self.pieces:
            return Text(f"no tokens: {visible(self._problem)}")
        piece = self.pieces[self.cursor]
        parts = [f"{piece.kind} mask {int(piece.kind == 'sampled')}", f"at {self.cursor}"]
        parts.append(f"id {piece.id} {visible(repr(piece.text))}")
        if piece.logprob is not None:
            parts.append(f"logprob {piece.logprob:.4f}  p {math.exp(min(0.0, piece.logprob)):.3f}")
        if piece.weight_version:
            parts.append(f"weights {visible(piece.weight_version)}")
        return Text("  ".join(parts))

    def legend(self) -> Text:
        """Legend: meanings of the colours."""
        if "heat" in self.shown:
            return Text.assemble("p ", *((f" {name} ", style) for name, style in HEATS.items()))
        return Text.assemble(*((f" {name} ", styles[0]) for name, styles in MASK_STYLES.items()))

    def on_resize(self, event: events.Resize) -> None:
        self._lay_out()

    def on_click(self, event: events.Click) -> None:
        line, at = self.scroll_offset.y + event.y, 0
        for piece, text in self._lines[line] if line < len(self._lines) else ():
            at += cell_len(text)
            if event.x < at:
                self._put(piece)
                return

    def render_line(self, y: int) -> Strip:
        position, width = self.scroll_offset.y + y, self.scrollable_content_region.width
        if position >= len(self._lines):
            return Strip.blank(width, self.rich_style)
        segments = [Segment(text, self._style(piece)) for piece, text in self._lines[position]]
        return Strip(segments).adjust_cell_length(width).apply_style(self.rich_style)

    def _style(self, position: int) -> Style:
        piece = self.pieces[position]
        striped = "boundaries" in self.shown and position % 2 == 1
        level = heat(piece.logprob)
        if "heat" not in self.shown:
            style = MASK_STYLES[piece.kind][striped]
        else:
            style = (DIM if level is None else list(HEATS.values())[level]) + Style(underline=striped)
        return style + Style(reverse=True, bold=True) if position == self.cursor else style

    def _lay_out(self) -> None:
        self._lines = piece_lines(self.pieces, max(2, self.scrollable_content_region.width or 80))
        self._changed()

    def _line_of(self, piece: int) -> int:
        """The line on which a token begins."""
        return bisect.bisect_left(self._lines, piece, key=lambda line: line[-1][0] if line else -1)

    def _put(self, piece: int) -> None:
        self.cursor = max(0, min(piece, len(self.pieces) - 1))
        self._changed()

    def _changed(self) -> None:
        self.virtual_size = Size(self.scrollable_content_region.width, len(self._lines))
        line, height = self._line_of(self.cursor), max(1, self.scrollable_content_region.height)
        top = round(self.scroll_offset.y)
        if not top <= line < top + height:
            self.scroll_to(y=max(0, line - height // 3), animate=False, force=True, immediate=True)
        self.refresh()
        self._on_change()


def piece_lines(pieces: Sequence[TokenPiece], width: int) -> list[list[Run]]:
    """Tokens in lines of at most `width` cells; a line break of a token is seen, and breaks the line behind it."""
    lines: list[list[Run]] = [[]]
    used = 0
    for position, piece in enumerate(pieces):
        shown = piece.text.replace("\r\n", "\n").expandtabs(4).replace("\n", "↵\n") or "·"
        for number, part in enumerate(map(visible, shown.split("\n"))):
            if number or (used and used + cell_len(part) > width):
                lines.append([])
                used = 0
            for chunk, text in enumerate(chop_cells(part, width) if part else ()):
                if chunk:
                    lines.append([])
                    used = 0
                lines[-1].append((position, text))
                used += cell_len(text)
    return lines if lines[-1] or len(lines) == 1 else lines[:-1]
