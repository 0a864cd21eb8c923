"""Filters, groups, comparison and search: what a person types, and what comes of it."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout.viewer.rows import lookup
from rollout.viewer.rows.columns import sorted_by
from rollout.viewer.rows.filters import Filter, FilterError, RowView, parse_filter
from rollout.viewer.rows.groups import ADVANTAGE_EPSILON, compare_steps, group_rows
from rollout.viewer.rows.index import DumpFolder, StepFile, read_row
from rollout.viewer.rows.lookup import QueryError, parse_query, search
from rollout.viewer.rows.summary import FIELDS, RowSummary, extra_names, facts_of
from tests.rollout.viewer.conftest import verl_row

RECORDS: list[dict[str, Any]] = [
    {
        "score": 1,
        "stop_reason": "answered",
        "cause": "POLICY",
        "turns": 2,
        "uid": "a",
        "output": "Say #### 6",
        "right": True,
    },
    {"score": 0.5, "stop_reason": "turns", "cause": "POLICY", "turns": 8, "uid": "a", "output": "say right", "acc": 1},
    {"score": None, "masked": True, "stop_reason": "infra", "cause": "INFRA", "uid": "b", "error": "gone away"},
    {
        "score": -2,
        "stop_reason": "answered",
        "turns": 3,
        "uid": "b",
        "tool_calls": [{"outcome": "time_limit"}],
        "right": False,
    },
]


def facts(record: dict[str, Any] | str, line: int = 1) -> RowSummary:
    return facts_of(record, Path("1.jsonl"), line=line, offset=0, size=2)


ROWS = [*(facts(record, line) for line, record in enumerate(RECORDS, 1)), facts("is not JSON", 5)]


def passing(expression: str) -> list[int]:
    found = parse_filter(expression, extra_names(ROWS))
    return [row.line for row in ROWS if found.matches(row, lambda row: row.problem or RECORDS[row.line - 1])]


@pytest.mark.parametrize(
    ("expression", "lines"),
    [
        ("", [1, 2, 3, 4, 5]),
        ("score>0.5", [1]),
        ("score >= 0.5", [1, 2]),
        ("score!=1", [2, 3, 4, 5]),
        ("score=none", [3]),
        ("score!=none broken=false", [1, 2, 4]),
        ("cause=infra", [3]),
        ("cause=POLICY stop_reason=turns", [2]),
        ("uid=b not masked=true", [4]),
        ("not uid=a not not uid=b", [3, 4]),
        ("broken=true", [5]),
        ("broken", [5]),
        ("masked", [3]),
        ("not masked not broken", [1, 2, 4]),
        ("masked=true", [3]),
        ("masked=True", [3]),
        ("masked=yes", [3]),
        ("masked=1", [3]),
        ("masked=false broken=no", [1, 2, 4]),
        ("masked!=True", [1, 2, 4, 5]),
        ('"masked"', []),
        ("right", [1, 2]),
        ("right=true", [1]),
        ("right=False", [4]),
        ("right!=true", [2, 3, 4, 5]),
        ("outcome=time_limit", [4]),
        ("outcome!=time_limit uid=b", [3]),
        ("acc=1", [2]),
        ("acc>0", [2]),
        ("turns~^[28]$", [1, 2]),
        ("say", [1, 2]),
        ("Say", [1]),
        ('"#### 6"', [1]),
        ('text~"#### \\d"', [1]),
        ("output!~say", [1, 3, 4, 5]),
        ("error=gone", [3]),
        ("uid=a say turns<3", [1]),
        ("stop_reason~swer", [1, 4]),
    ],
)
def test_filter_passes(expression: str, lines: list[int]) -> None:
    assert passing(expression) == lines


@pytest.mark.parametrize(
    ("expression", "position", "problem"),
    [
        ("scor>1", 0, "scor is not a field; did you mean score?"),
        ("turns=2 zzzz=1", 8, "zzzz is not a field; there are: line, bytes,"),
        ("score>", 6, "> needs a value"),
        ("score>high", 6, "score is compared with 'high', which is no number"),
        ("score>none", 5, "none has no size"),
        ("uid>3", 3, "uid is a text and has no size"),
        ("masked>0", 6, "masked is true or false and has no size"),
        ("masked=maybe", 7, "masked is true or false, and not 'maybe'"),
        ("output<3", 6, "output is a text and has no size"),
        ("> 3", 0, "> needs a field before it"),
        ("score>1 or uid=a", 8, "there is no or: all terms must hold"),
        ("not", 3, "a term is missing"),
        ("(score>1)", 0, "'(' is not understood here"),
        ('turns=1 "open', 8, "the quote is not closed"),
        ("uid~", 4, "~ needs a value"),
        ('uid~"a(b"', 6, "the regular expression is not one"),
        ("a ! b", 2, "'!' is not understood here"),
    ],
)
def test_mistake_is_named_with_its_place(expression: str, position: int, problem: str) -> None:
    with pytest.raises(FilterError) as caught:
        parse_filter(expression)
    assert problem in str(caught.value)
    assert (caught.value.position, f"character {position + 1}" in str(caught.value)) == (position, True)


@given(st.text(alphabet='score turns=<>~!()"\\or not and 12.', max_size=40))
def test_any_text_is_a_filter_or_an_error_with_a_place(text: str) -> None:
    found: Filter | FilterError
    try:
        found = parse_filter(text)
    except FilterError as error:
        found = error
    if isinstance(found, FilterError):
        assert 0 <= found.position <= len(text)
    else:
        assert all(found.matches(row, lambda row: {}) in (True, False) for row in ROWS)


def test_row_is_read_only_where_cheap_terms_leave_a_choice() -> None:
    asked: list[int] = []
    found = parse_filter("say score>0.7")

    def read(row: RowSummary) -> str:
        asked.append(row.line)
        return "gone"

    assert not any(found.matches(row, read) for row in ROWS)
    assert asked == [1]


@given(st.lists(st.none() | st.floats(), max_size=20), st.booleans())
def test_numbers_are_sorted_by_size_and_missing_ones_are_last(scores: list[float | None], descending: bool) -> None:
    rows = [facts({"score": score}, line) for line, score in enumerate(scores, 1)]
    found = [row.score for row in sorted_by(rows, FIELDS["score"].get, descending=descending)]
    known = [score for score in scores if score is not None and not math.isnan(score)]
    assert found[: len(known)] == sorted(known, reverse=descending)
    assert all(score is None or math.isnan(score) for score in found[len(known) :])


def test_view_judges_each_row_once(played: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = StepFile(played / "9.jsonl")
    judged: list[int] = []
    matches = Filter.matches

    def judging(self: Filter, row: RowSummary) -> bool:
        judged.append(row.line)
        return matches(self, row)

    monkeypatch.setattr(Filter, "matches", judging)
    view = RowView(file, parse_filter("output~####"))
    while not file.advance(1) or view.pending:
        view.advance()
    assert judged == [1, 2, 3, 4, 5, 6]
    ordered = sorted_by(view.passed, FIELDS["response_tokens"].get, descending=False)
    assert len(ordered) == 5  # the one that failed never answered
    assert [row.response_tokens for row in ordered] == sorted(row.response_tokens or 0 for row in ordered)


@given(st.lists(st.tuples(st.sampled_from("ab"), st.none() | st.floats(-10, 10)), max_size=12))
def test_groups_leave_out_what_is_masked(members: list[tuple[str, float | None]]) -> None:
    rows = [
        facts({"uid": uid, "score": score, "masked": score is None, "input": str(line)}, line)
        for line, (uid, score) in enumerate(members, 1)
    ]
    groups = group_rows([*rows, facts("broken", 99)])
    assert [row.line for group in groups for row in group.rows] == [
        row.line for group in groups for row in rows if row.uid == group.label
    ]
    for group in groups:
        scores = [score for uid, score in members if uid == group.label and score is not None]
        assert group.scores == scores
        assert group.mean == (pytest.approx(statistics.fmean(scores)) if scores else None)
        assert group.std == (pytest.approx(statistics.stdev(scores), abs=1e-9) if len(scores) > 1 else None)


def test_advantage_is_that_of_grpo(played: Path) -> None:
    file = StepFile(played / "9.jsonl")
    file.advance()
    groups = group_rows(file.rows)
    assert [len(group.rows) for group in groups] == [2, 2, 2]
    right, wrong = groups[0].rows
    assert groups[0].std == pytest.approx(math.sqrt(0.5))
    assert groups[0].advantage(right) == pytest.approx(0.5 / (math.sqrt(0.5) + ADVANTAGE_EPSILON))
    assert groups[0].advantage(wrong) == pytest.approx(-(groups[0].advantage(right) or 0))
    assert (len(groups[2].scores), groups[2].std, groups[2].advantage(groups[2].rows[0])) == (1, None, None)


def test_rows_without_shared_uids_are_grouped_by_their_prompt(write: Callable[..., Path]) -> None:
    file = StepFile(write(1, *(verl_row(number, uid=f"u{number}") for number in range(4))))
    file.advance()
    assert [[row.line for row in group.rows] for group in group_rows(file.rows)] == [[1, 2], [3, 4]]
    assert [group.label for group in group_rows(file.rows)] == ["line 1", "line 3"]


def test_plain_dumps_are_compared_by_prompt(write: Callable[..., Path]) -> None:
    files = [
        StepFile(write(1, *(verl_row(number) for number in range(4)))),
        StepFile(write(2, *(verl_row(number, score=9.0, output="x") for number in (3, 2, 1, 0)))),
    ]
    for file in files:
        file.advance()
    found = compare_steps(files[0].rows, files[1].rows)
    assert [change.of("score") for change in found] == [9.0, 8.0, 7.0, 6.0]
    assert found[0].tokens == 1 - len("I think it is 0.")


def test_search_goes_through_every_step(played: Path) -> None:
    folder = DumpFolder(played)
    found = list(search(folder.steps, parse_query("traceback"), slice_bytes=1))
    assert len(found) > 12  # a slice a line
    assert (found[0].percent < 20, found[-1].percent) == (True, 100)
    hits = [hit for progress in found for hit in progress.hits]
    assert [(hit.row.path.stem, hit.row.line) for hit in hits] == [(s, line) for s in ("9", "10") for line in (2, 4, 6)]
    assert "Traceback" in hits[0].snippet
    record = read_row(hits[0].row)
    assert isinstance(record, dict)
    assert record["request_id"] == hits[0].row.request_id


@pytest.mark.parametrize(
    ("text", "count"),
    [("traceback", 1), ("TRACEBACK", 0), ("/T.acebac[k]/", 1), ("☃ é", 1), ('"quoted" \\ text', 1), ("a/b", 1)],
)
def test_search_finds_what_json_escapes(write: Callable[..., Path], tmp_path: Path, text: str, count: int) -> None:
    write(1, verl_row(0), verl_row(1) | {"output": 'Traceback ☃ é "quoted" \\ text a/b'}, "{")
    hits = [hit for progress in search(DumpFolder(tmp_path).steps, parse_query(text)) for hit in progress.hits]
    assert [hit.row.line for hit in hits] == [2] * count


def test_search_stops_at_its_bound(write: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookup, "MAX_HITS", 3)
    write(1, *(verl_row(number) for number in range(5)))
    write(2, verl_row(0))
    found = list(search(DumpFolder(tmp_path).steps, parse_query("think")))
    assert (sum(len(progress.hits) for progress in found), [progress.truncated for progress in found]) == (3, [True])


@pytest.mark.parametrize("text", ["", " ", "/(/"])
def test_text_that_cannot_be_looked_for_is_refused(text: str) -> None:
    with pytest.raises(QueryError):
        parse_query(text)


def test_request_is_found_by_what_its_id_begins_with(write: Callable[..., Path], tmp_path: Path) -> None:
    write(1, verl_row(0, request_id="0A1B2C3D-4E5F"), "{")
    write(2, verl_row(1, request_id="ffff0000"))
    hits = [hit for each in search(DumpFolder(tmp_path).steps, parse_query("0a1b2c3d")) for hit in each.hits]
    assert [(hit.row.path.stem, hit.row.line) for hit in hits] == [("1", 1)]


def test_texts_of_a_row_are_read_whatever_they_hold() -> None:
    record = json.loads('{"output": null, "messages": [{"content": [{"type": "text", "text": "Part"}]}, 3], "gts": 4}')
    assert parse_filter("part").matches(facts(record), lambda row: record)
