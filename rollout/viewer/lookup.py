"""Looks for a text in every row of every step, a slice of a file at a time.

Invariants: each slice is about a MiB, so a search that is no longer wanted stops at once, by not being asked on; the
memory that it holds is the hits, at most `MAX_HITS`, and one line; it keeps no index.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fairbox.errors import FairboxError
from rollout.viewer.facts import RowFacts, facts_of, parse_line, row_texts
from rollout.viewer.filters import text_matcher
from rollout.viewer.index import SLICE_BYTES, Line, Step, read_lines

__all__ = ["MAX_HITS", "Query", "QueryError", "SearchHit", "SearchProgress", "parse_query", "request_query", "search"]

MAX_HITS = 1000
"""Rows; a search that finds more says so and ends."""
_AROUND = 30
"""Characters shown before a hit."""
_SNIPPET = 160


class QueryError(FairboxError):
    """A text that can't be looked for."""


@dataclass(frozen=True, slots=True)
class Query:
    """A pattern, and the texts of a row in which it is looked for."""

    source: str
    pattern: re.Pattern[str]
    texts: Callable[[Mapping[str, Any]], list[str]] = row_texts


def parse_query(source: str) -> Query:
    """A text, or with slashes around it a regular expression. Without a capital letter a text matches any case. Raises
    QueryError for nothing, and for a regular expression that is none."""
    if not source.strip():
        raise QueryError("there is nothing to look for")
    if len(source) > 2 and source[0] == source[-1] == "/":
        try:
            return Query(source, re.compile(source[1:-1]))
        except (re.error, OverflowError, RecursionError) as error:
            raise QueryError(f"the regular expression is not one: {error}") from None
    return Query(source, text_matcher(source))


def request_query(wanted: str) -> Query:
    """A row whose request id begins with `wanted`; hyphens and case do not matter. Raises QueryError for nothing."""
    letters = wanted.replace("-", "").strip()
    if not letters:
        raise QueryError("there is nothing to look for")
    pattern = re.compile(r"\A-*" + "-*".join(map(re.escape, letters)), re.IGNORECASE)
    return Query(wanted, pattern, lambda record: [str(record.get("request_id", ""))])


@dataclass(frozen=True, slots=True)
class SearchHit:
    """A row that has the text."""

    step: Step
    row: RowFacts
    count: int
    """Places in the longest of its texts that has it; texts overlap, so they are not added up."""
    snippet: str
    """Around the first place, on one line."""


@dataclass(frozen=True, slots=True)
class SearchProgress:
    """What one slice brought."""

    hits: tuple[SearchHit, ...]
    read_bytes: int
    total_bytes: int
    """As far as it is known: files may grow."""
    truncated: bool = False
    """Whether it ended at `MAX_HITS`."""
    problem: str = ""
    """A file that could not be read."""

    @property
    def percent(self) -> int:
        """The share that has been read."""
        return 100 * self.read_bytes // max(1, self.total_bytes)


def search(steps: Sequence[Step], query: Query, *, slice_bytes: int = SLICE_BYTES) -> Iterator[SearchProgress]:
    """Every row of every step that has the text, step by step. Take one progress after another, or stop."""
    total = sum(_size(step) for step in steps)
    read, found = 0, 0
    for step in steps:
        try:
            for hits, size in _search_file(step, query, slice_bytes):
                read += size
                room = MAX_HITS - found
                found += len(hits)
                yield SearchProgress(tuple(hits[:room]), read, max(total, read), truncated=found > MAX_HITS)
                if found > MAX_HITS:
                    return
        except OSError as error:
            yield SearchProgress((), read, max(total, read), problem=f"{step.path}: {error.strerror or error}")


def _search_file(step: Step, query: Query, slice_bytes: int) -> Iterator[tuple[list[SearchHit], int]]:
    hits: list[SearchHit] = []
    size = 0
    with step.path.open("rb") as file:
        for line in read_lines(file):
            if hit := _hit(step, query, line):
                hits.append(hit)
            size += line.size + line.ended
            if size >= slice_bytes:
                yield hits, size
                hits, size = [], 0
    yield hits, size


def _hit(step: Step, query: Query, line: Line) -> SearchHit | None:
    record = parse_line(line.data or b"")
    if isinstance(record, str):
        return None
    texts = query.texts(record)
    count, text = max(((sum(1 for _ in query.pattern.finditer(text)), text) for text in texts), default=(0, ""))
    match = query.pattern.search(text)
    if not count or match is None:
        return None
    start = max(0, match.start() - _AROUND)
    snippet = ("…" if start else "") + " ".join(text[start : start + _SNIPPET].split())
    return SearchHit(step, facts_of(record, line=line.number, offset=line.offset, size=line.size), count, snippet)


def _size(step: Step) -> int:
    try:
        return step.path.stat().st_size
    except OSError:
        return 0
