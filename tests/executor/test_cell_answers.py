"""What the server makes of an interpreter's claims: sizes, types and order are checked, whatever the code says."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from executor_service.core.cells import MAX_DISPLAY_BYTES, MAX_DISPLAYS, CellAnswer, judge_cell, read_answer
from executor_service.model import Cause, FileStatus, Limits, Outcome

GOOD: dict[str, Any] = {
    "type": "done",
    "cell": 3,
    "exit_code": 0,
    "displays": [{"sizes": {"text/plain": 2, "text/html": 3}, "truncated": False}],
    "files": [{"path": "a", "status": "returned", "size": 4}, {"path": "b", "status": "too_large", "size": 1 << 40}],
    "cpu_s": 0.5,
    "peak_bytes": 1,
    "resident_bytes": 2,
}
BLOB = b"42<b>file"


def read(head: dict[str, Any], blob: bytes = BLOB, return_bytes: int = 100) -> CellAnswer:
    return read_answer(head, blob, cell=3, paths=["a", "b"], return_bytes=return_bytes)


def test_an_answer_is_taken_apart() -> None:
    answer = read(GOOD)
    assert dict(answer.displays[0].data) == {"text/plain": b"42", "text/html": b"<b>"}
    assert [(file.status, file.content) for file in answer.files] == [
        (FileStatus.RETURNED, b"file"),
        (FileStatus.TOO_LARGE, b""),
    ]
    assert answer.files[1].size_bytes == 1 << 40


@pytest.mark.parametrize(
    "change",
    [
        {"type": "ready"},
        {"cell": 2},
        {"exit_code": "0"},
        {"exit_code": True},
        {"displays": [{"sizes": {"text/plain": 200}, "truncated": False}]},
        {"displays": [{"sizes": {"text/plain": -1}, "truncated": False}]},
        {"displays": [{"sizes": {}, "truncated": False}] * (MAX_DISPLAYS + 1)},
        {"displays": [{"sizes": {f"k{i}": 0 for i in range(100)}, "truncated": False}]},
        {"displays": [{"sizes": {"x" * 1000: 0}, "truncated": False}]},
        {"displays": None},
        {"displays": []},
        {"files": []},
        {"files": [{"path": "../a", "status": "returned", "size": 4}, {"path": "b", "status": "missing", "size": 0}]},
        {"files": [{"path": "a", "status": "fine", "size": 4}, {"path": "b", "status": "missing", "size": 0}]},
        {"cpu_s": float("nan")},
        {"cpu_s": -1},
        {"peak_bytes": 1 << 70},
        {"error": ["no text"]},
        {"raised": {"ename": "E", "evalue": "x"}},
        {"raised": {"ename": "E", "evalue": "x", "traceback": "text"}},
        {"raised": {"ename": "E" * 300, "evalue": "x", "traceback": []}},
        {"raised": {"ename": "E", "evalue": "x", "traceback": [1]}},
    ],
    ids=str,
)
def test_a_claim_that_makes_no_sense_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        read({**GOOD, **change})


def test_more_bytes_than_are_accounted_for_are_refused() -> None:
    with pytest.raises(ValueError, match="accounted"):
        read(GOOD, BLOB + b"x")


def test_more_bytes_of_files_than_the_limit_are_refused() -> None:
    with pytest.raises(ValueError, match="bytes of files"):
        read(GOOD, return_bytes=3)


def test_more_bytes_of_displays_than_the_bound_are_refused() -> None:
    size = MAX_DISPLAY_BYTES + 1
    head = {**GOOD, "displays": [{"sizes": {"image/png": size}, "truncated": False}], "files": []}
    with pytest.raises(ValueError, match="displays"):
        read_answer(head, bytes(size), cell=3, paths=[], return_bytes=0)


TEXT = st.text(st.characters(), max_size=5)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(st.sampled_from([*GOOD, "raised"]), JSON))
def test_whatever_comes_is_an_answer_or_a_value_error(change: dict[str, Any]) -> None:
    try:
        answer = read({**GOOD, **change})
    except ValueError:
        return
    # What is taken can be sent: gRPC refuses text that is not valid Unicode.
    kinds = [kind for display in answer.displays for kind in display.data]
    "".join([answer.error, answer.problem, *kinds]).encode()


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
