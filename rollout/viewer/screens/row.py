"""One trajectory: its turns and tool calls, or its tokens."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import ClassVar

from rich.text import Text
from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import ContentSwitcher

from fairbox.errors import FairboxError
from rollout.viewer.rows.columns import number_text
from rollout.viewer.rows.document import Block, blocks_of
from rollout.viewer.rows.groups import compare_steps
from rollout.viewer.rows.index import read_bytes, read_row
from rollout.viewer.rows.lookup import parse_query
from rollout.viewer.rows.pieces import TokenPiece, row_pieces
from rollout.viewer.rows.summary import RowSummary
from rollout.viewer.screens.base import PromptScreen, Session, ViewerScreen
from rollout.viewer.widgets.document import DocumentView
from rollout.viewer.widgets.tokens import TokenView


class RowScreen(ViewerScreen):
    """`rows` are those that n and p go through. `find` is looked for in each of them."""

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
    DEFAULT_CSS = "RowScreen ContentSwitcher { height: 1fr; }"

    def __init__(self, session: Session, rows: Sequence[RowSummary], position: int, *, find: str = "") -> None:
        super().__init__(session)
        self._rows = rows
        self._position = position
        self._find_text = find
        self._document = DocumentView(self._status, id="document")
        self._tokens = TokenView(self._status, id="tokens")
        self._tokens_of: RowSummary | None = None

    def body(self) -> ComposeResult:
        with ContentSwitcher(initial="document"):
            yield self._document
            yield self._tokens

    def on_mount(self) -> None:
        self._load()

    def row(self) -> RowSummary:
        return self._rows[self._position]

    @property
    def showing_tokens(self) -> bool:
        """Says whether the tokens are on the screen."""
        return self.query_one(ContentSwitcher).current == "tokens"

    def action_row(self, rows: int) -> None:
        position = max(0, min(self._position + rows, len(self._rows) - 1))
        if position != self._position:
            self._position = position
            self._load()

    def action_step(self, steps: int) -> None:
        self._to_step(steps)

    @work
    async def action_find(self) -> None:
        question = "find in this row; /regular expression/"
        text = await self.app.push_screen_wait(PromptScreen(question, self._find_text, parse_query))
        if text is not None:
            if self.showing_tokens:
                self.action_tokens()
            self._find_text = text
            if not self._document.find(parse_query(text)):
                self.tell(f"{text} is not in this row")
            self._status()

    def action_next_match(self, step: int) -> None:
        if not self.showing_tokens:
            self._document.next_match(step)

    def action_tokens(self) -> None:
        self.query_one(ContentSwitcher).current = "document" if self.showing_tokens else "tokens"
        self._show_mode()

    def action_back(self) -> None:
        if self._find_text and not self.showing_tokens:
            self._find_text = ""
            self._document.find(None)
            self._status()
        elif self.showing_tokens:
            self.action_tokens()
        else:
            super().action_back()

    @work(group="row", exclusive=True)
    async def _load(self) -> None:
        row = self.row()
        await self._document.show(await asyncio.to_thread(_blocks, row))
        if self._find_text:
            self._document.find(parse_query(self._find_text))
        ended = f"  {row.stop_reason} {row.cause}" if row.stop_reason else ""
        self.title_line(
            f"step {row.path.stem} line {row.line}  ({self._position + 1} of {len(self._rows)})  "
            f"score {number_text(row.score)}{ended}{'  MASKED' if row.masked else ''}  {row.request_id[:12]}"
        )
        self._show_mode()

    @work(group="row", exclusive=True)
    async def _to_step(self, steps: int) -> None:
        known = await asyncio.to_thread(self.session.folder.refresh)
        row = self.row()
        position = known.index(row.path) + steps if row.path in known else -1
        if not 0 <= position < len(known):
            self.tell("there is no further step")
            return
        before, after = await self.read_step(row.path), await self.read_step(known[position])
        if not after:
            self.tell(f"step {known[position].stem} has no rows")
            return
        changes = await asyncio.to_thread(compare_steps, before, after)
        line = next((change.after.line for change in changes if change.before.line == row.line), row.line)
        self._rows = after
        self._position = next((position for position, each in enumerate(after) if each.line == line), 0)
        self._load()

    def _show_mode(self) -> None:
        if self.showing_tokens:
            self._tokens.focus()
            if self._tokens_of is not self.row():
                self.status_line("decoding")
                self._load_tokens()
        else:
            self._document.focus()
        self._status()

    @work(group="tokens", exclusive=True)
    async def _load_tokens(self) -> None:
        row = self.row()
        pieces, problem = await asyncio.to_thread(_pieces, row, self.session.tokenizer)
        self._tokens_of = row
        self._tokens.show(pieces, problem)

    def _status(self) -> None:
        if self.showing_tokens:
            self.status_line(Text.assemble(self._tokens.about_cursor(), "\n", self._tokens.legend(), end=""))
            return
        at, found = self._document.current, self._document.found
        parts = [f"part {at + 1} of {len(self._document.parts)}"] if self._document.parts else []
        if self._find_text:
            which = f"{found.index(at) + 1} of {len(found)}" if at in found else "none"
            parts.append(f"found {self._find_text}: {which}; enter next, backspace previous, esc forgets")
        self.status_line("  ".join(parts))


def _pieces(row: RowSummary, tokenizer: str | None) -> tuple[Sequence[TokenPiece], str]:
    """The row's tokens, or why there are none."""
    record = read_row(row)
    try:
        return ((), record) if isinstance(record, str) else (row_pieces(record, tokenizer), "")
    except FairboxError as error:
        return (), str(error)


def _blocks(row: RowSummary) -> list[Block]:
    record = read_row(row)
    if isinstance(record, dict):
        return blocks_of(record)
    start = read_bytes(row, 20_000)
    text = start if isinstance(start, str) else start.decode("utf-8", "replace")
    return [
        Block("failed_call", f"line {row.line} {record}", ""),
        Block("other", "its first 20000 bytes", text),
    ]
