"""One trajectory: its turns and tool calls, or its tokens."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import ContentSwitcher

from rollout.viewer.columns import number_text
from rollout.viewer.document import Block, BlockKind, blocks_of
from rollout.viewer.lookup import Query, parse_query
from rollout.viewer.screens.base import ViewerScreen, query_problem
from rollout.viewer.session import Place, Session
from rollout.viewer.widgets.document import DocumentView
from rollout.viewer.widgets.tokens import TokenView

__all__ = ["RowScreen"]


class RowScreen(ViewerScreen):
    """`places` are the rows that n and p go through. `find` is looked for in each of them."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("n", "row(1)", "Next row"),
        Binding("p", "row(-1)", "Previous row"),
        Binding("N", "step(1)", "Next step", show=False),
        Binding("P", "step(-1)", "Previous step", show=False),
        Binding("f,slash", "find", "Find", key_display="f"),
        Binding("enter", "next_match(1)", "Next place", show=False),
        Binding("backspace", "next_match(-1)", "Previous place", show=False),
        Binding("t", "tokens", "Tokens"),
    ]
    DEFAULT_CSS = """
    RowScreen ContentSwitcher { height: 1fr; }
    """

    def __init__(self, session: Session, places: list[Place], position: int, *, find: str = "") -> None:
        super().__init__(session)
        self._places = places
        self._position = position
        self._query: Query | None = parse_query(find) if find else None
        self._tokens_of: Place | None = None

    def body(self) -> ComposeResult:
        with ContentSwitcher(initial="document"):
            yield DocumentView(id="document")
            yield TokenView(id="tokens")

    def on_mount(self) -> None:
        self._open()

    def place(self) -> Place:
        return self._places[self._position]

    @property
    def showing_tokens(self) -> bool:
        """Whether the tokens are on the screen."""
        return self.query_one(ContentSwitcher).current == "tokens"

    def action_row(self, rows: int) -> None:
        position = max(0, min(self._position + rows, len(self._places) - 1))
        if position != self._position:
            self._position = position
            self._open()

    def action_step(self, steps: int) -> None:
        self.start(partial(self._to_step, steps), "row")

    def action_find(self) -> None:
        value = self._query.source if self._query is not None else ""
        self.ask("find in this row; /regular expression/", self._find, value=value, check=query_problem)

    def action_next_match(self, step: int) -> None:
        if not self.showing_tokens:
            self.query_one(DocumentView).next_match(step)

    def action_tokens(self) -> None:
        self.query_one(ContentSwitcher).current = "document" if self.showing_tokens else "tokens"
        self._show_mode()

    def action_back(self) -> None:
        if self._query is not None and not self.showing_tokens:
            self._query = None
            self.query_one(DocumentView).find(None)
            self._status()
        elif self.showing_tokens:
            self.action_tokens()
        else:
            super().action_back()

    def on_document_view_changed(self) -> None:
        self._status()

    def on_token_view_changed(self) -> None:
        self._status()

    def _open(self) -> None:
        self._tokens_of = None
        self.start(partial(self._load, self.place()), "row")

    async def _load(self, place: Place) -> None:
        blocks = await asyncio.to_thread(_blocks, self.session, place)
        view = self.query_one(DocumentView)
        await view.show(blocks)
        if self._query is not None:
            view.find(self._query.pattern)
        self._title()
        self._show_mode()

    async def _to_step(self, steps: int) -> None:
        known = await asyncio.to_thread(self.session.folder.refresh)
        place = self.place()
        position = known.index(place.step) + steps if place.step in known else -1
        if not 0 <= position < len(known):
            self.tell("there is no further step")
            return
        other = known[position]
        for step in (place.step, other):
            await self.read_step(step)
        partner = await asyncio.to_thread(self.session.partner, place, other)
        if partner is None:
            self.tell(f"step {other.label} has no rows")
            return
        rows = self.session.file(other).rows()
        self._places = [Place(other, row) for row in rows]
        self._position = next((i for i, row in enumerate(rows) if row.line == partner.row.line), 0)
        self._tokens_of = None
        await self._load(self.place())

    def _find(self, text: str) -> None:
        if self.showing_tokens:
            self.action_tokens()
        self._query = parse_query(text)
        if not self.query_one(DocumentView).find(self._query.pattern):
            self.tell(f"{text} is not in this row")
        self._status()

    def _show_mode(self) -> None:
        tokens = self.query_one(TokenView)
        if self.showing_tokens:
            tokens.focus()
            if self._tokens_of is not self.place():
                self.status_line("decoding")
                self.start(partial(self._load_tokens, self.place()), "tokens")
        else:
            self.query_one(DocumentView).focus()
        self._status()

    async def _load_tokens(self, place: Place) -> None:
        tokens = await asyncio.to_thread(self.session.tokens, place)
        self._tokens_of = place
        self.query_one(TokenView).show(tokens.pieces)
        if tokens.problem:
            self.tell(f"segments instead of tokens: {tokens.problem}")

    def _title(self) -> None:
        place = self.place()
        row = place.row
        ended = f"  {row.stop_reason} {row.cause}" if row.stop_reason else ""
        masked = "  MASKED" if row.masked else ""
        self.title_line(
            f"step {place.step.label} line {row.line}  ({self._position + 1} of {len(self._places)})  "
            f"score {number_text(row.score)}{ended}{masked}  {row.request_id[:12]}"
        )

    def _status(self) -> None:
        if self.showing_tokens:
            view = self.query_one(TokenView)
            self.status_line(Text.assemble(view.about_cursor(), "\n", view.legend(), end=""))
            return
        document = self.query_one(DocumentView)
        at, found = document.current, document.found
        parts = [f"part {at + 1} of {len(document.parts)}"] if document.parts else []
        if self._query is not None:
            which = f"{found.index(at) + 1} of {len(found)}" if at in found else "none"
            parts.append(f"found {self._query.source}: {which}; enter next, backspace previous, esc forgets")
        self.status_line("  ".join(parts))


def _blocks(session: Session, place: Place) -> list[Block]:
    record = session.read(place)
    if isinstance(record, dict):
        return blocks_of(record)
    start = session.file(place.step).read_bytes(place.row, 20_000)
    text = start if isinstance(start, str) else start.decode("utf-8", "replace")
    return [
        Block(BlockKind.FAILED_CALL, f"line {place.row.line} {record}", ""),
        Block(BlockKind.OTHER, "its first 20000 bytes", text),
    ]
