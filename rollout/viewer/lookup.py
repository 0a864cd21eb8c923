"""Looks for a text in every row of every step, a slice of a file at a time.

Invariants: each slice is about a MiB, so a search that is no longer wanted stops at once, by not being asked on; the
memory that it holds is the hits, at most `MAX_HITS`, and one line; it keeps no index. A line is parsed only where its
bytes may hold the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fairbox.errors import FairboxError
from rollout.viewer.facts import RowFacts, facts_of, parse_line
from rollout.viewer.fields import row_texts
from rollout.viewer.filters import text_matcher
from rollout.viewer.index import MAX_LINE_BYTES, SLICE_BYTES
from rollout.viewer.steps import Step

__all__ = ["MAX_HITS", "Query", "QueryError", "SearchHit", "SearchProgress", "find_request", "parse_query", "search"]

MAX_HITS = 1000
"""Rows; a search that finds more says so and ends."""
_AROUND = 30
"""Characters shown before a hit."""
_SNIPPET = 160
_NEVER_ESCAPED = re.compile(r"[A-Za-z0-9 _.,:;#()*+=-]+")
"""Texts that every JSON writer writes as they are, so that lines without them need not be parsed."""
_REQUEST_ID = re.compile(rb'"request_id"\s*:\s*"([A-Za-z0-9._:-]*)"')


class QueryError(FairboxError):
    """A text that can't be looked for."""


@dataclass(frozen=True, slots=True)
class Query:
    """A text, or with slashes around it a regular expression. Without a capital letter a text matches any case."""

    source: str
    pattern: re.Pattern[str]
    needle: bytes = b""
    """In lower case; a line whose lower case is without it has no hit. Empty: every line is parsed."""

    def may_be_in(self, line: bytes) -> bool:
        """False when the line can be passed over unparsed."""
        return self.needle in line.lower()


def parse_query(source: str) -> Query:
    """Raises QueryError for nothing, and for a regular expression that is none."""
    if not source.strip():
        raise QueryError("there is nothing to look for")
    if len(source) > 2 and source[0] == source[-1] == "/":
        try:
            return Query(source, re.compile(source[1:-1]))
        except (re.error, OverflowError, RecursionError) as error:
            raise QueryError(f"the regular expression is not one: {error}") from None
    needle = source.lower().encode() if _NEVER_ESCAPED.fullmatch(source) else b""
    return Query(source, text_matcher(source), needle)


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
    size = offset = number = 0
    with step.path.open("rb") as file:
        while line := file.readline(MAX_LINE_BYTES):
            number += 1
            part, whole = line, len(line)
            while not part.endswith(b"\n") and len(part) == MAX_LINE_BYTES:  # too long for a row
                part = file.readline(MAX_LINE_BYTES)
                whole += len(part)
            if whole <= MAX_LINE_BYTES and query.may_be_in(line) and (hit := _hit(step, query, line, number, offset)):
                hits.append(hit)
            offset += whole
            size += whole
            if size >= slice_bytes:
                yield hits, size
                hits, size = [], 0
    yield hits, size


def _hit(step: Step, query: Query, line: bytes, number: int, offset: int) -> SearchHit | None:
    line = line.removesuffix(b"\n")
    record = parse_line(line)
    if isinstance(record, str):
        return None
    best, count = "", 0
    for text in row_texts(record):
        if query.pattern.search(text) and (places := sum(1 for _ in query.pattern.finditer(text))) > count:
            best, count = text, places
    if not count:
        return None
    row = facts_of(record, line=number, offset=offset, size=len(line))
    return SearchHit(step, row, count, _snippet(best, query.pattern))


def _snippet(text: str, pattern: re.Pattern[str]) -> str:
    match = pattern.search(text)
    assert match is not None
    start = max(0, match.start() - _AROUND)
    return ("…" if start else "") + " ".join(text[start : start + _SNIPPET].split())


def _size(step: Step) -> int:
    try:
        return step.path.stat().st_size
    except OSError:
        return 0


def find_request(steps: Sequence[Step], wanted: str) -> Iterator[Step | tuple[Step, RowFacts]]:
    """Looks for the row whose request id begins with `wanted`; hyphens and case do not matter. Yields each step before
    it is read, and then about each MiB, so that the search can be stopped; the row ends it."""
    prefix = _plain_id(wanted)
    for step in steps:
        yield step
        try:
            with step.path.open("rb") as file:
                offset = since = 0
                for number, line in enumerate(file, 1):
                    if any(_plain_id(found.decode()).startswith(prefix) for found in _REQUEST_ID.findall(line)):
                        record = parse_line(line)
                        if isinstance(record, dict) and _plain_id(str(record.get("request_id"))).startswith(prefix):
                            size = len(line.removesuffix(b"\n"))
                            yield step, facts_of(record, line=number, offset=offset, size=size)
                            return
                    offset += len(line)
                    since += len(line)
                    if since >= SLICE_BYTES:
                        yield step
                        since = 0
        except OSError:
            continue  # a step that was taken away meanwhile has no row


def _plain_id(text: str) -> str:
    return text.replace("-", "").strip().lower()
