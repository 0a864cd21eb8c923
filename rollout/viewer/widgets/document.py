"""Shows a trajectory's blocks: folded and unfolded, with what was found in them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import ClassVar

from rich.text import Text
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import Collapsible, Static

from rollout.viewer.rows.columns import DIM, visible
from rollout.viewer.rows.document import Block

FOUND = "bold #000000 on #ffe45c"


class Part(Collapsible):
    """One block. Its title has its kind's colour."""

    DEFAULT_CSS = """
    Part { padding: 0; border-top: none; background: transparent; }
    Part > Contents { padding: 0 0 0 2; }
    Part > CollapsibleTitle { text-style: bold; color: #c3cddb; }
    Part.prompt > CollapsibleTitle { color: #8fb4e8; }
    Part.turn > CollapsibleTitle { color: #8fe0a0; }
    Part.call > CollapsibleTitle { color: #e8c98f; }
    Part.failed_call > CollapsibleTitle { color: #ff8f7a; }
    Part.other > CollapsibleTitle { color: #b9a3d8; }
    Part.current > CollapsibleTitle { text-style: bold reverse; }
    """

    def __init__(self, block: Block) -> None:
        self.block = block
        body = "\n".join(map(visible, block.body.split("\n")))
        self._text = Text(body, DIM if block.kind == "prompt" else "")
        self._body = Static(self._text)
        self._first = 0
        super().__init__(self._body, collapsed=block.folded, classes=block.kind)

    def on_mount(self) -> None:
        self._title.can_focus = False
        self._title.label = Content(visible(self.block.title))  # a tool's name may look like markup

    def find(self, pattern: re.Pattern[str] | None) -> bool:
        """Says whether the text is in it; every place is marked."""
        text = self._text.copy()
        for match in pattern.finditer(self.block.body) if pattern is not None else ():
            text.stylize(FOUND, *match.span())
        self._body.update(text)
        self._first = min((span.start for span in text.spans), default=0)
        return len(text.spans) > 0

    def line_of_place(self) -> int:
        """The line of the first place that was found, from its title's."""
        return len(self._text[: self._first + 1].wrap(self.app.console, max(1, self._body.size.width)))


class DocumentView(VerticalScroll):
    """`await show(blocks)`. Keys act on the current part. `changed` is called when it is another one."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left,left_square_bracket", "part(-1)", "Previous part", show=False),
        Binding("right,right_square_bracket", "part(1)", "Next part", show=False),
        Binding("space", "fold", "Fold", show=False),
        Binding("z", "fold_all", "Fold all", show=False),
    ]

    def __init__(self, changed: Callable[[], None], *, id: str) -> None:
        super().__init__(id=id)
        self._changed = changed
        self.parts: Sequence[Part] = ()
        self.found: Sequence[int] = ()
        """Positions of the parts that have what was looked for."""
        self.current = 0
        """Position of the current part."""

    async def show(self, blocks: Sequence[Block]) -> None:
        """Shows another trajectory, from its start."""
        self.found, self.parts = (), [Part(block) for block in blocks]
        await self.remove_children()
        await self.mount_all(self.parts)
        self.scroll_home(animate=False)
        self._choose(0)

    def find(self, pattern: re.Pattern[str] | None) -> int:
        """Counts the parts that have the text; the first one from the current on is shown."""
        first = self._in_sight()
        self.found = [position for position, part in enumerate(self.parts) if part.find(pattern)]
        if self.found:
            self._unfold(next((position for position in self.found if position >= first), self.found[0]))
        return len(self.found)

    def next_match(self, step: int) -> None:
        """Shows the next part that has what was found, or the one before; around the end."""
        if self.found:
            at = self.found.index(self.current) + step if self.current in self.found else 0
            self._unfold(self.found[at % len(self.found)])

    def action_part(self, parts: int) -> None:
        if self.parts:
            self._go(max(0, min(self._in_sight() + parts, len(self.parts) - 1)))

    def action_fold(self) -> None:
        if self.parts:
            position = self._in_sight()
            self.parts[position].collapsed = not self.parts[position].collapsed
            self._choose(position)

    def action_fold_all(self) -> None:
        """Unfolds everything; folds everything where nothing is folded."""
        folded = any(part.collapsed for part in self.parts)
        for part in self.parts:
            part.collapsed = not folded

    def _in_sight(self) -> int:
        """The part on which keys act: the current one, or the first that is in sight where that was scrolled away."""
        seen = [position for position, part in enumerate(self.parts) if part.region.overlaps(self.region)]
        return self.current if self.current in seen or not seen else seen[0]

    def _unfold(self, position: int) -> None:
        self.parts[position].collapsed = False
        self._choose(position)
        self.call_after_refresh(self._show_place, self.parts[position])

    def _show_place(self, part: Part) -> None:
        line = part.virtual_region.y + part.line_of_place()
        self.scroll_to(y=max(part.virtual_region.y, line - self.size.height // 2), animate=False)

    def _go(self, position: int) -> None:
        self._choose(position)
        self.call_after_refresh(self.parts[position].scroll_visible, top=True, animate=False)

    def _choose(self, position: int) -> None:
        self.current = position
        for each, part in enumerate(self.parts):
            part.set_class(each == position, "current")
        self._changed()
