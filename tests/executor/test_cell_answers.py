"""Checks of an interpreter's claims: the server checks sizes, types and order, whatever the code says."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from executor_service.guest.protocol.wire import MAX_TABLE
from executor_service.guest.serve.display import MAX_DISPLAYS
from executor_service.model import Cause, FileStatus, Limits, Outcome
from executor_service.sessions.cells import CellAnswer, judge_cell, read_answer

GOOD: dict[str, Any] = {
    "type": "done",
    "cell": 3,
    "exit_code": 0,
    "cpu_s": 0.5,
    "peak_bytes": 1,
    "resident_bytes": 2,
}
TABLE: dict[str, Any] = {
    "raised": [1, 2, 3],
    "displays": [[{"text/plain": 2, "text/html": 3}, False]],
    "files": [["returned", 4], ["too_large", 1 << 40]],
}
BYTES = b"Eno1\n2" + b"42<b>" + b"file"
DEEP = b"[" * 900 + b"]" * 900


def read(head: dict[str, Any], table: object = TABLE, rest: bytes = BYTES, return_bytes: int = 100) -> CellAnswer:
    text = table if isinstance(table, bytes) else json.dumps(table).encode()
    head = {"table": len(text), **head}
    return read_answer(head, text + rest, cell=3, paths=["a", "b"], return_bytes=return_bytes)


def test_an_answer_is_taken_apart() -> None:
    answer = read(GOOD)
    assert dict(answer.displays[0].data) == {"text/plain": b"42", "text/html": b"<b>"}
    assert [(file.path, file.status, file.content, file.size_bytes) for file in answer.files] == [
        ("a", FileStatus.RETURNED, b"file", 4),
        ("b", FileStatus.TOO_LARGE, b"", 1 << 40),
    ]
    assert answer.raised == {"ename": "E", "evalue": "no", "traceback": ["1", "2"]}


@pytest.mark.parametrize(
    "change",
    [
        {"type": "ready"},
        {"cell": 2},
        {"exit_code": "0"},
        {"exit_code": True},
        {"cpu_s": -1},
        {"cpu_s": "1"},
        {"peak_bytes": -1},
        {"error": 1},
        {"table": -1},
        {"table": 1 << 62},
        {"table": None},
    ],
    ids=str,
)
def test_a_claim_that_makes_no_sense_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        read({**GOOD, **change})


@pytest.mark.parametrize(
    "table",
    [
        DEEP,
        b'{"displays":' + DEEP + b"}",
        b'{"files":[["returned",' + DEEP + b"],[]]}",
        b"[" * 30_000,
        b"9" * 60_000,
        b"no JSON",
        b"[1]",
        json.dumps({**TABLE, "x": "x" * MAX_TABLE}).encode(),
        {**TABLE, "displays": [[{"text/plain": 200}, False]]},
        {**TABLE, "displays": [[{"text/plain": -1}, False]]},
        {**TABLE, "displays": [[{"text/plain": 1e400}, False]]},
        {**TABLE, "displays": [[{}, False]] * (MAX_DISPLAYS + 1)},
        {**TABLE, "displays": [[{f"k{i}": 0 for i in range(100)}, False]]},
        {**TABLE, "displays": [[{"x" * 1000: 0}, False]]},
        {**TABLE, "displays": None},
        {**TABLE, "displays": []},
        {**TABLE, "files": []},
        {**TABLE, "files": [["fine", 4], ["missing", 0]]},
        {**TABLE, "files": [["returned", 10**400], ["missing", 0]]},
        {**TABLE, "raised": [1]},
        {**TABLE, "raised": "abc"},
    ],
    ids=lambda table: str(table)[:40],
)
def test_a_table_that_makes_no_sense_is_refused(table: object) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        read(GOOD, table)


def test_bytes_that_nobody_accounts_for_or_wants_are_refused() -> None:
    with pytest.raises(ValueError, match="accounts"):
        read(GOOD, rest=BYTES + b"x")
    with pytest.raises(ValueError, match="bytes of files"):
        read(GOOD, return_bytes=3)


TEXT = st.text(st.characters(), max_size=5)
SCALAR = st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 63) - 1) | st.text(max_size=5)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.dictionaries(st.sampled_from([*GOOD, "table", "error"]), SCALAR),
    st.dictionaries(st.sampled_from([*TABLE]), JSON),
)
def test_whatever_comes_is_an_answer_or_a_value_error(change: dict[str, Any], table: dict[str, Any]) -> None:
    try:
        answer = read({**GOOD, **change}, {**TABLE, **table})
    except ValueError:
        return
    # What is taken can be sent: gRPC refuses text that is not valid Unicode.
    "".join(kind for display in answer.displays for kind in display.data).encode()


def test_a_cell_is_judged_by_what_it_did_and_never_masked() -> None:
    limits = Limits(wall_time_s=2.0)
    cases = {
        CellAnswer(0): (Outcome.FINISHED, 0),
        CellAnswer(1, error="ValueError: x"): (Outcome.NONZERO_EXIT, 1),
        CellAnswer(0, exited=True): (Outcome.FINISHED, 0),
        CellAnswer(3, exited=True): (Outcome.NONZERO_EXIT, 3),
        CellAnswer(0, problem="no room"): (Outcome.NONZERO_EXIT, 1),
    }
    for answer, (outcome, code) in cases.items():
        judged = judge_cell(answer, limits, timed_out=False)
        assert judged[:3] == (outcome, Cause.POLICY, code)
    late = judge_cell(CellAnswer(0), limits, timed_out=True)
    assert late[:4] == (Outcome.TIME_LIMIT, Cause.POLICY, 130, 2)
    assert "2 s" in late[4]
