"""What was found in all rows of all steps, while it is being found."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import Footer, Static

from rollout.viewer.columns import Column, number_text
from rollout.viewer.lookup import MAX_HITS, QueryError, SearchHit, SearchProgress, parse_query, search
from rollout.viewer.screens.base import ViewerScreen, take
from rollout.viewer.session import Place, Session
from rollout.viewer.widgets.table import Table

__all__ = ["SearchScreen", "query_problem"]

_COLUMNS: tuple[Column[SearchHit], ...] = (
    Column("step", "step", 6, lambda hit: hit.step.label),
    Column("line", "line", 6, lambda hit: str(hit.row.line)),
    Column("score", "score", 7, lambda hit: number_text(hit.row.score)),
    Column("count", "places", 6, lambda hit: str(hit.count)),
    Column("text", "text", 30, lambda hit: hit.snippet, right=False, grows=True),
)


def query_problem(text: str) -> str:
    """What is wrong with a text to look for; empty when nothing is."""
    try:
        parse_query(text)
    except QueryError as error:
        return str(error)
    return ""


class SearchScreen(ViewerScreen):
    """Looks for `text` from the moment it is shown. Esc stops it, and then leaves."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("n", "move(1)", "Next row", show=False),
        Binding("p", "move(-1)", "Previous row", show=False),
    ]

    def __init__(self, session: Session, text: str) -> None:
        super().__init__(session)
        self._query = parse_query(text)
        self._hits: list[SearchHit] = []
        self.running = True
        """Whether it still looks."""

    def compose(self) -> ComposeResult:
        yield Static(classes="title")
        yield Table[SearchHit](id="hits")
        yield Static(classes="status")
        yield Footer()

    def on_mount(self) -> None:
        self.title_line(f"find {self._query.source}")
        self._table.focus()
        self.start(self._look, "search")

    @property
    def _table(self) -> Table[SearchHit]:
        return self.query_one("#hits", Table)

    def place(self) -> Place | None:
        hit = self._table.current
        return None if hit is None else Place(hit.step, hit.row)

    def on_table_opened(self) -> None:
        places = [Place(hit.step, hit.row) for hit in self._hits]
        self.open_places(places, self._table.cursor, find=self._query.source)

    def action_move(self, rows: int) -> None:
        self._table.action_move(rows)

    def action_back(self) -> None:
        if self.running:
            self.workers.cancel_group(self, "search")
            self.running = False
            self.status_line(f"stopped; {len(self._hits)} rows; esc leaves")
        else:
            super().action_back()

    async def _look(self) -> None:
        progress: SearchProgress | None
        truncated = False
        looking = search(self.session.folder.steps, self._query)
        while (progress := await take(looking)) is not None:
            if progress.hits:
                self._hits.extend(progress.hits)
                self._table.show(_COLUMNS, self._hits)
            if progress.problem:
                self.tell(progress.problem, problem=True)
            truncated = truncated or progress.truncated
            share = 100 * progress.read_bytes // max(1, progress.total_bytes)
            self.status_line(f"{len(self._hits)} rows, {share} % read; enter opens, esc stops")
        self.running = False
        more = f", and more than {MAX_HITS} are not listed" if truncated else ""
        self.status_line(f"{len(self._hits)} rows{more}; enter opens, esc leaves")
