"""Looks for a text in every row of every step, a slice of a file at a time.

Invariants: each slice is about a MiB, so a search that is no longer wanted stops at once, by not being asked on; the
memory that it holds is the hits, at most `MAX_HITS`, and one line; it keeps no index.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from fairbox.errors import FairboxError
from rollout.viewer.rows.filters import text_matcher
from rollout.viewer.rows.index import SLICE_BYTES, Line, read_lines
from rollout.viewer.rows.summary import RowSummary, facts_of, parse_line, row_texts

MAX_HITS = 1000
"""Rows; a search that finds more says so and ends."""
_AROUND = 30
"""Characters shown before a hit."""
_SNIPPET = 160


class QueryError(FairboxError):
    """A text that can't be looked for."""


def parse_query(source: str) -> re.Pattern[str]:
    """A text, or with slashes around it a regular expression. Without a capital letter a text matches any case. Raises
    QueryError for nothing, and for a regular expression that is none."""
    if not source.strip():
        raise QueryError("there is nothing to look for")
    if len(source) > 2 and source[0] == source[-1] == "/":
        try:
            return re.compile(source[1:-1])
        except (re.error, OverflowError, RecursionError) as error:
            raise QueryError(f"the regular expression is not one: {error}") from None
    return text_matcher(source)


@dataclass(frozen=True, slots=True)
class SearchHit:
    """A row that has the text."""

    row: RowSummary
    count: int
    """Places in the text of the row that has most; texts overlap, so they are not added up."""
    snippet: str
    """Around the first place, on one line."""


@dataclass(frozen=True, slots=True)
class SearchProgress:
    """Result of one slice of a search."""

    hits: tuple[SearchHit, ...]
    percent: int
    """The share of the files that has been read."""
    truncated: bool = False
    """Says whether it ended at `MAX_HITS`."""
    problem: str = ""
    """Why a file could not be read."""


def search(
    steps: Sequence[Path], pattern: re.Pattern[str], *, slice_bytes: int = SLICE_BYTES
) -> Iterator[SearchProgress]:
    """Every row of every step that has the text, step by step. Take one progress after another, or stop."""
    total = max(1, sum(map(_size, steps)))
    read = sliced = listed = 0
    hits: list[SearchHit] = []
    for step in steps:
        problem = ""
        try:
            with step.open("rb") as file:
                for line in read_lines(file):
                    read, sliced = read + line.size + line.ended, sliced + line.size
                    if hit := _hit(step, pattern, line):
                        if listed == MAX_HITS:
                            yield SearchProgress(tuple(hits), min(100, 100 * read // total), truncated=True)
                            return
                        hits.append(hit)
                        listed += 1
                    if sliced >= slice_bytes:
                        yield SearchProgress(tuple(hits), min(100, 100 * read // total))
                        hits, sliced = [], 0
        except OSError as error:
            problem = f"{step}: {error.strerror or error}"
        yield SearchProgress(tuple(hits), min(100, 100 * read // total), problem=problem)
        hits = []


def _hit(step: Path, pattern: re.Pattern[str], line: Line) -> SearchHit | None:
    record = parse_line(line.data or b"")
    if isinstance(record, str):
        return None
    texts = row_texts(record)
    count, text = max(((sum(1 for _ in pattern.finditer(text)), text) for text in texts), default=(0, ""))
    match = pattern.search(text)
    if not count or match is None:
        return None
    start = max(0, match.start() - _AROUND)
    snippet = ("…" if start else "") + " ".join(text[start : start + _SNIPPET].split())
    return SearchHit(facts_of(record, step, line=line.number, offset=line.offset, size=line.size), count, snippet)


def _size(step: Path) -> int:
    try:
        return step.stat().st_size
    except OSError:
        return 0
