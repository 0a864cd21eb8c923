"""Turns in several parts: nothing is lost or doubled, whatever interrupts them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rollout.engines import FinishReason, GenerationRequest, GenerationResult, SamplingParams, VersionSpan
from rollout.engines.turn import Turn


def asked(*, max_new_tokens: int = 10, time_limit_s: float | None = None) -> GenerationRequest:
    params = SamplingParams(max_new_tokens=max_new_tokens, stop_token_ids=(0,))
    return GenerationRequest("r", "t", (7, 8), params, queue_timeout_s=10, time_limit_s=time_limit_s)


def part(
    ids: tuple[int, ...], finish: FinishReason, version: str = "a", *, queue_s: float = 0.0, run_s: float = 0.0
) -> GenerationResult:
    spans = (VersionSpan(version, 0, len(ids)),)
    return GenerationResult(ids, tuple(-float(token) for token in ids), finish, spans, queue_s, run_s)


def finish_of(turn: Turn) -> FinishReason | None:
    return turn.finish


def test_an_uninterrupted_turn_is_its_only_part() -> None:
    turn = Turn(asked())
    assert turn.next_request() == asked()
    turn.add(GenerationResult((5, 0), (-5.0, 0.0), FinishReason.STOP, (VersionSpan("a", 0, 2),), 1.0, 2.0, 1))
    result = turn.result()
    assert (result.ids, result.finish, result.versions) == ((5, 0), FinishReason.STOP, (VersionSpan("a", 0, 2),))
    assert (result.queue_s, result.run_s, result.cached_tokens) == (1.0, 2.0, 1)


def test_an_interrupted_turn_goes_on_from_what_it_has() -> None:
    turn = Turn(asked(time_limit_s=5))
    turn.add(part((5, 6), FinishReason.ABORT, queue_s=2, run_s=1), interrupted=True)
    turn.waited(3)
    following = turn.next_request()
    assert following.input_ids == (7, 8, 5, 6)
    assert following.params.max_new_tokens == 8
    assert (following.queue_timeout_s, following.time_limit_s) == (5, 4)
    turn.add(part((), FinishReason.ABORT, "b"), interrupted=True)
    turn.add(part((4,), FinishReason.ABORT, "b"), interrupted=True)
    turn.add(part((3, 0), FinishReason.STOP, "b"))
    result = turn.result()
    assert result.ids == (5, 6, 4, 3, 0)
    assert result.logprobs == (-5.0, -6.0, -4.0, -3.0, 0.0)
    assert result.versions == (VersionSpan("a", 0, 2), VersionSpan("b", 2, 5))
    assert result.finish is FinishReason.STOP


def test_time_runs_over_all_parts() -> None:
    turn = Turn(asked(time_limit_s=5))
    turn.add(part((5,), FinishReason.ABORT, run_s=4), interrupted=True)
    assert finish_of(turn) is None
    turn.add(part((6,), FinishReason.ABORT, run_s=1), interrupted=True)
    assert finish_of(turn) is FinishReason.ABORT
    limited = Turn(asked(time_limit_s=5))
    limited.add(part((5,), FinishReason.ABORT, run_s=5))
    assert limited.finish is FinishReason.ABORT


def test_a_stop_that_the_request_does_not_know_is_no_end() -> None:
    turn = Turn(asked())
    turn.add(part((5, 9), FinishReason.STOP))
    assert turn.finish is None
    assert turn.next_request().input_ids == (7, 8, 5, 9)


def test_a_turn_that_is_ended_early_keeps_what_came_before() -> None:
    turn = Turn(asked())
    versions = (VersionSpan("a", 0, 2), VersionSpan("b", 2, 4))
    turn.add(GenerationResult((1, 2, 3, 4), (-1.0, -2.0, -3.0, -4.0), FinishReason.LENGTH, versions))
    turn.end_at(3)
    result = turn.result()
    assert (result.ids, result.logprobs, result.finish) == ((1, 2, 3), (-1.0, -2.0, -3.0), FinishReason.STOP)
    assert result.versions == (VersionSpan("a", 0, 2), VersionSpan("b", 2, 3))


def test_waits_use_up_the_time_in_the_queue() -> None:
    turn = Turn(asked())
    turn.waited(11)
    assert turn.queue_left_s == 0


@given(st.lists(st.lists(st.integers(1, 6), max_size=4), max_size=8), st.integers(1, 20))
def test_parts_add_up_to_one_sequence(parts: list[list[int]], limit: int) -> None:
    turn = Turn(asked(max_new_tokens=limit))
    said: list[int] = []
    for number, ids in enumerate(parts):
        if turn.finish is not None:
            break
        request = turn.next_request()
        assert request.input_ids == (7, 8, *said)
        assert request.params.max_new_tokens == limit - len(said)
        ids = ids[: request.params.max_new_tokens]
        said += ids
        turn.add(part(tuple(ids), FinishReason.ABORT, f"v{number // 2}"), interrupted=True)
    if turn.finish is None:
        turn.add(part((0,), FinishReason.STOP, "last"))
        said.append(0)
    result = turn.result()
    assert result.ids == tuple(said)
    assert result.logprobs == tuple(-float(token) for token in said)
    assert [index for span in result.versions for index in range(span.start, span.end)] == list(range(len(said)))
    assert all(a.version != b.version for a, b in zip(result.versions, result.versions[1:], strict=False))
