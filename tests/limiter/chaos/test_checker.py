"""The checker accepts histories that keep the promises, and names what is wrong with those that do not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.limiter.chaos.checker import problems
from tests.limiter.chaos.history import Grant, History, Request, Run, read_history
from tests.limiter.chaos.journal import Journal, Steps

_LIMITS = {"code": 3}


def _run(seq: int, start: int, stop: int, tokens: int = 1) -> Run:
    return Run("executor-0", "code", tokens, (7, seq), start, stop)


def _grant(seq: int, asked: int, queued: int | None = None, ticket: int | None = None) -> Grant:
    return Grant("client-0", f"r{seq}", "code", (7, seq), asked, queued, None if ticket is None else (7, ticket))


def _history(*runs: Run, grants: tuple[Grant, ...] = (), requests: tuple[Request, ...] = ()) -> History:
    return History(_LIMITS, runs, requests, grants)


def test_nothing_is_wrong_with_an_empty_history() -> None:
    assert problems(_history()) == []


def test_as_many_as_the_limit_may_run_at_once() -> None:
    assert problems(_history(_run(1, 0, 10), _run(2, 5, 20), _run(3, 6, 8), _run(4, 10, 30))) == []


def test_one_above_the_limit_is_found() -> None:
    (found,) = problems(_history(_run(1, 0, 10), _run(2, 5, 20), _run(3, 6, 8), _run(4, 7, 30)))
    assert "4 tokens in flight at 7, the limit is 3" in found


def test_weights_count() -> None:
    assert problems(_history(_run(1, 0, 10, 2), _run(2, 3, 8))) == []
    assert len(problems(_history(_run(1, 0, 10, 2), _run(2, 3, 8, 2)))) == 1


def test_run_that_never_stepped_still_counts() -> None:
    assert len(problems(_history(*(_run(seq, 5, 5) for seq in range(1, 5))))) == 1


def test_buckets_are_judged_apart() -> None:
    runs = [_run(1, 0, 10, 3), replace(_run(2, 0, 10, 3), bucket="other")]
    assert problems(History({"code": 3, "other": 3}, tuple(runs), (), ())) == []


def test_lease_serves_one_program() -> None:
    (found,) = problems(_history(_run(1, 0, 10), _run(1, 20, 30)))
    assert "lease (7, 1) served 2 programs" in found


@pytest.mark.parametrize(
    ("ends", "survived", "fine"), [((), True, False), ((), False, True), (("granted",), True, True)]
)
def test_request_of_a_process_that_lives_has_an_end(ends: tuple[str, ...], survived: bool, fine: bool) -> None:
    assert (problems(_history(requests=(Request("client-0", "r1", ends, survived),))) == []) is fine


def test_request_has_one_end() -> None:
    (found,) = problems(_history(requests=(Request("client-0", "r1", ("granted", "cancelled")),)))
    assert "2 ends: granted, cancelled" in found


def test_who_waited_is_granted_before_who_came_later() -> None:
    in_order = (_grant(1, asked=0, queued=2), _grant(2, asked=5, queued=6), _grant(3, asked=7))
    assert problems(_history(grants=in_order)) == []
    (found,) = problems(_history(grants=(_grant(1, asked=5), _grant(2, asked=0, queued=2))))
    assert "r1 (lease 1) was asked for 0.0 ms after client-0 r2 (lease 2) was queued" in found


def test_requests_that_cross_may_be_granted_either_way() -> None:
    assert problems(_history(grants=(_grant(1, asked=1), _grant(2, asked=0, queued=2)))) == []


def test_who_was_away_may_be_passed() -> None:
    assert problems(_history(grants=(_grant(1, asked=5), _grant(2, asked=0, queued=None)))) == []


def test_tickets_are_granted_in_their_order() -> None:
    (found,) = problems(_history(grants=(_grant(1, asked=0, ticket=9), _grant(2, asked=0, ticket=8))))
    assert "ticket (7, 9) was granted before client-0 r2 (lease 2) with ticket (7, 8)" in found


def test_order_is_judged_within_an_epoch() -> None:
    later = replace(_grant(2, asked=0, queued=2), lease=(8, 1))
    assert problems(_history(grants=(_grant(1, asked=5), later))) == []


def test_lease_is_granted_once() -> None:
    twice = replace(_grant(1, asked=0), request="other")
    (found,) = problems(_history(grants=(_grant(1, asked=0), twice)))
    assert "lease (7, 1) was granted to" in found


def _written(folder: Path, *events: tuple[str, float, dict[str, Any]], step: float) -> History:
    """Reads a client's journal and a kill of the limiter at second 2 as a history; `step` is the last step of the
    client's work."""
    Journal(folder / "limiter.jsonl").note("killed", at=2_000_000_000)
    journal = Journal(folder / "client-0.0.jsonl")
    for kind, at, facts in events:
        journal.note(kind, at=int(at * 1e9), **facts)
    Steps(folder / "client-0.0.steps").take(0, int(step * 1e9))
    return read_history(folder, _LIMITS)


_HELD = ("start", 1.0, {"run": 0, "bucket": "code", "tokens": 1, "epoch": 7, "seq": 1, "held": "stream"})


@pytest.mark.parametrize(
    ("later", "counted"),
    [
        ([("welcome", 4.0, {"stream": 2, "epoch": 8, "recovering": True})], 9.0),
        ([("welcome", 6.0, {"stream": 2, "epoch": 8, "recovering": False})], 5.0),
        (
            [
                ("welcome", 4.0, {"stream": 2, "epoch": 8, "recovering": True}),
                ("unknown", 4.0, {"epoch": 7, "seq": 1}),
            ],
            5.0,
        ),
        ([], 5.0),
    ],
    ids=["reported", "reported too late", "not taken", "not reported"],
)
def test_work_under_a_hold_counts_for_as_long_as_its_client_has_said_so(
    later: list[tuple[str, float, dict[str, Any]]], counted: float, tmp_path: Path
) -> None:
    (run,) = _written(tmp_path, _HELD, *later, step=9.0).runs
    assert (run.start, run.stop) == (1_000_000_000, int(counted * 1e9))


@pytest.mark.parametrize("recovering", [True, False])
def test_place_of_who_came_back_before_anything_was_granted_is_judged(recovering: bool, tmp_path: Path) -> None:
    (grant,) = _written(
        tmp_path,
        ("request", 1.0, {"request": "r", "bucket": "code"}),
        ("welcome", 1.0, {"stream": 1, "epoch": 7, "recovering": False}),
        ("queued", 1.1, {"stream": 1, "request": "r", "epoch": 7, "seq": 3}),
        ("welcome", 3.0, {"stream": 2, "epoch": 8, "recovering": recovering}),
        ("placed", 3.0, {"stream": 2, "request": "r"}),
        ("granted", 5.0, {"stream": 2, "request": "r", "epoch": 8, "seq": 1}),
        step=0.0,
    ).grants
    assert (grant.queued, grant.ticket) == (3_000_000_000, (7, 3) if recovering else None)
