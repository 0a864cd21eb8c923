"""Shows a trajectory's blocks: folded and unfolded, with what was found in them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from rollout.viewer.columns import visible
from rollout.viewer.document import Block, BlockKind
from rollout.viewer.layout import DocumentLayout, DocumentLine
from rollout.viewer.widgets.styles import BLOCK_STYLES, CURSOR, DIM, FOUND, FOUND_CURRENT

__all__ = ["DocumentView"]

_CONTEXT = 3
"""Lines that are kept in sight around the current one."""


class DocumentView(ScrollView, can_focus=True):
    """`show(blocks)`; `layout_state` is what is on the screen. `Changed` says that a key changed it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", "Up", show=False),
        Binding("down,j", "move(1)", "Down", show=False),
        Binding("pageup,ctrl+b", "page(-1)", "Page up", show=False),
        Binding("pagedown,ctrl+f", "page(1)", "Page down", show=False),
        Binding("home,g", "edge(-1)", "Start", show=False),
        Binding("end,G", "edge(1)", "End", show=False),
        Binding("left,h,left_square_bracket", "block(-1)", "Previous part", show=False),
        Binding("right,l,right_square_bracket", "block(1)", "Next part", show=False),
        Binding("space", "fold", "Fold", show=False),
        Binding("z", "fold_all", "Fold all", show=False),
    ]

    class Changed(Message):
        """The current line, a fold or a hit is another one."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.layout_state = DocumentLayout((), 80)

    def show(self, blocks: Sequence[Block]) -> None:
        """Shows another trajectory, from its start."""
        self.layout_state = DocumentLayout(blocks, self._width())
        self._changed()
        self.scroll_to(y=0, animate=False, force=True, immediate=True)

    def find(self, pattern: re.Pattern[str] | None) -> int:
        """How many places there are; the first one is shown."""
        count = self.layout_state.find(pattern)
        self._changed()
        return count

    def next_match(self, step: int) -> None:
        """Shows the next place, or the one before."""
        self.layout_state.next_match(step)
        self._changed()

    def action_move(self, lines: int) -> None:
        self.layout_state.move(lines)
        self._changed()

    def action_page(self, pages: int) -> None:
        self.action_move(pages * max(1, self.scrollable_content_region.height - 2))

    def action_edge(self, direction: int) -> None:
        self.action_move(direction * len(self.layout_state.lines))

    def action_block(self, blocks: int) -> None:
        self.layout_state.move_block(blocks)
        self._changed()
        line = self.layout_state.line
        self.scroll_to(y=max(0, line - 1), animate=False, force=True, immediate=True)

    def action_fold(self) -> None:
        self.layout_state.toggle()
        self._changed()

    def action_fold_all(self) -> None:
        self.layout_state.toggle_all()
        self._changed()

    def on_resize(self, event: events.Resize) -> None:
        self.layout_state.resize(self._width())
        self._changed()

    def on_click(self, event: events.Click) -> None:
        line = self.scroll_offset.y + event.y
        if line < len(self.layout_state.lines):
            self.layout_state.line = line
            if self.layout_state.lines[line].stretch is None:
                self.layout_state.toggle()
            self._changed()

    def render_line(self, y: int) -> Strip:
        position = self.scroll_offset.y + y
        state, width = self.layout_state, self.scrollable_content_region.width
        if position >= len(state.lines):
            return Strip.blank(width, self.rich_style)
        line = state.lines[position]
        segments = self._title(line) if line.stretch is None else self._body(line)
        current = position == state.line
        if current:
            mark = Segment("▌", CURSOR) if line.stretch is None else Segment("▌ ", DIM)
            segments = [mark, *segments[1:]]
        return Strip(segments).adjust_cell_length(width).apply_style(self.rich_style)

    def _title(self, line: DocumentLine) -> list[Segment]:
        block = self.layout_state.blocks[line.block]
        folded = line.block in self.layout_state.folded
        style = BLOCK_STYLES[block.kind]
        is_current = self.layout_state.block == line.block
        segments = [Segment(" "), Segment(f"{'▶' if folded else '▼'} {visible(block.title)}", style)]
        if is_current:
            segments[1] = Segment(segments[1].text, style + Style(underline=True))
        if folded:
            count = block.body.count("\n") + 1 if block.body else 0
            start = " ".join(block.body[:200].split())
            segments.append(Segment(f"  {count} line{'s' * (count != 1)}  {visible(start)}", DIM))
        return segments

    def _body(self, line: DocumentLine) -> list[Segment]:
        block, stretch = self.layout_state.blocks[line.block], line.stretch
        assert stretch is not None
        style = DIM if block.kind is BlockKind.PROMPT else None
        segments, at = [Segment("  ")], stretch.start
        for start, end, current in self.layout_state.matches_on(line):
            segments.append(Segment(visible(block.body[at:start]), style))
            segments.append(Segment(visible(block.body[start:end]), FOUND_CURRENT if current else FOUND))
            at = end
        segments.append(Segment(visible(block.body[at : stretch.end]), style))
        return segments

    def _width(self) -> int:
        return max(20, self.scrollable_content_region.width or 80)

    def _changed(self) -> None:
        state = self.layout_state
        self.virtual_size = Size(self.scrollable_content_region.width, len(state.lines))
        top, height = round(self.scroll_offset.y), max(1, self.scrollable_content_region.height)
        margin = min(_CONTEXT, height // 3)
        if state.line < top + margin:
            target = state.line - margin
        elif state.line >= top + height - margin:
            target = state.line - height + margin + 1
        else:
            target = top
        if target != top:
            self.scroll_to(y=max(0, target), animate=False, force=True, immediate=True)
        self.refresh()
        self.post_message(self.Changed())
