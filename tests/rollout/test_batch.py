"""Batches: what is where in the tensors, what is masked, and what is refused."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from executor_service import Cause
from fairbox.errors import FieldErrors
from rollout.batch import MaskedRows, RolloutBatch
from rollout.loop import StopReason, TrajectoryResult
from rollout.rewards import Reward
from rollout.tokens import Segment
from tests.interop.results import result, sampled, tool

torch = pytest.importorskip("torch", reason="torch is not installed (extra `engine`)")

TWO_TURNS = result([1, 2, 3], sampled([4, 5]), tool([6, 7]), sampled([8], version="2"), uid="a", reward=0.5)
FAILED = result([1], sampled([9, 9]), uid="a", infra=True)
SHORT = result([2, 2], sampled([3]), uid="b", reward=0.0)


def test_shapes_padding_and_values() -> None:
    batch = RolloutBatch.from_results([TWO_TURNS, FAILED, SHORT], pad_token_id=0)
    assert len(batch) == 3
    assert batch.prompts.tolist() == [[1, 2, 3], [0, 0, 1], [0, 2, 2]]
    assert batch.responses.tolist() == [[4, 5, 6, 7, 8], [9, 9, 0, 0, 0], [3, 0, 0, 0, 0]]
    assert batch.input_ids.tolist()[2] == [0, 2, 2, 3, 0, 0, 0, 0]
    assert batch.attention_mask.tolist()[1] == [0, 0, 1, 1, 1, 0, 0, 0]
    assert batch.position_ids.tolist()[1] == [0, 0, 0, 1, 2, 2, 2, 2]
    assert batch.response_mask.tolist() == [[1, 1, 0, 0, 1], [0, 0, 0, 0, 0], [1, 0, 0, 0, 0]]
    assert batch.rollout_log_probs.tolist() == [[-0.5, -0.5, 0, 0, -0.5], [0.0] * 5, [-0.5, 0, 0, 0, 0]]
    assert batch.weight_versions.tolist() == [[0, 0, -1, -1, 1], [-1] * 5, [0, -1, -1, -1, -1]]
    assert batch.versions == ("1", "2")
    assert batch.rewards.tolist() == [0.5, 0.0, 0.0]
    assert batch.token_rewards.tolist() == [[0, 0, 0, 0, 0.5], [0.0] * 5, [0.0] * 5]
    assert (batch.scored.tolist(), batch.masked.tolist()) == ([True, False, True], [False, True, False])
    assert (batch.groups.tolist(), batch.uids) == ([0, 0, 1], ("a", "a", "b"))
    assert batch.turns.tolist() == [2, 1, 1]
    assert batch.causes == (Cause.POLICY, Cause.INFRA, Cause.POLICY)
    assert batch.stop_reasons[1] is StopReason.INFRA


def test_types_are_the_documented_ones() -> None:
    batch = RolloutBatch.from_results([TWO_TURNS], pad_token_id=0)
    tensors = {field.name: getattr(batch, field.name) for field in fields(batch) if field.type == "torch.Tensor"}
    floats = {"rollout_log_probs", "rewards", "token_rewards"}
    for name, tensor in tensors.items():
        wanted = (
            torch.float32
            if name in floats
            else torch.bool
            if name in ("scored", "masked", "is_last_step")
            else torch.int64
        )
        assert tensor.dtype == wanted, name


def test_a_masked_row_has_no_reward_even_when_it_was_given_one() -> None:
    batch = RolloutBatch.from_results([result([1], sampled([2]), infra=True, reward=7.0)], pad_token_id=0)
    assert (batch.rewards.tolist(), batch.scored.tolist(), batch.token_rewards.sum().item()) == ([0.0], [False], 0.0)


def test_masked_rows_are_dropped_when_asked() -> None:
    batch = RolloutBatch.from_results([TWO_TURNS, FAILED, SHORT], pad_token_id=0, masked=MaskedRows.DROP)
    assert (batch.uids, batch.masked.tolist()) == (("a", "b"), [False, False])
    with pytest.raises(FieldErrors, match="results leaves no row"):
        RolloutBatch.from_results([FAILED], pad_token_id=0, masked=MaskedRows.DROP)


def test_a_row_that_does_not_fit_is_named_and_never_cut() -> None:
    batch = RolloutBatch.from_results([TWO_TURNS], pad_token_id=0, prompt_length=4, response_length=6)
    assert (batch.prompts.shape, batch.responses.shape) == ((1, 4), (1, 6))
    problem = r"results\[1\] \(t-a\) has a response of 5 ids, at most response_length 4 fit"
    with pytest.raises(FieldErrors, match=problem):
        RolloutBatch.from_results([SHORT, TWO_TURNS], pad_token_id=0, prompt_length=3, response_length=4)
    with pytest.raises(FieldErrors, match=r"has a prompt of 3 ids, at most prompt_length 2 fit"):
        RolloutBatch.from_results([TWO_TURNS], pad_token_id=0, prompt_length=2)


@pytest.mark.parametrize(
    ("results", "options", "problem"),
    [
        ([], {}, "results leaves no row"),
        ([SHORT], {"pad_token_id": -1}, "pad_token_id is -1, must be 0 or more"),
        ([SHORT], {"prompt_length": 0}, "prompt_length is 0, must be at least 1"),
        ([SHORT], {"response_length": -3}, "response_length is -3, must be at least 1"),
        ([result([1], sampled([2]), reward=1e39)], {}, r"has the reward 1e\+39, must be finite as a float32"),
        (
            [replace(result([1], sampled([2])), reward=Reward(0.0, turns={1: 1e39}))],
            {},
            r"has the reward 1e\+39, must be finite as a float32",
        ),
    ],
)
def test_bad_input_is_refused(results: list[TrajectoryResult], options: dict[str, Any], problem: str) -> None:
    with pytest.raises(FieldErrors, match=problem):
        RolloutBatch.from_results(results, **{"pad_token_id": 0} | options)


def test_a_prompt_that_filled_the_context_keeps_its_reward_beside_the_tokens() -> None:
    batch = RolloutBatch.from_results([result([1, 2], reward=-1.0, cause=Cause.TASK)], pad_token_id=0)
    assert (batch.responses.shape, batch.rewards.tolist(), batch.token_rewards.tolist()) == ((1, 1), [-1.0], [[0.0]])
    assert batch.attention_mask.tolist() == [[1, 1, 0]]


def test_rewards_of_turns_stand_at_the_last_sampled_ids_of_their_turns() -> None:
    row = result(
        [1], sampled([2, 3]), sampled([4], version="2"), tool([5]), sampled([6]), tool([7, 7]), sampled([8, 9]), turns=3
    )
    paid = replace(row, reward=Reward(0.75, turns={1: 0.25, 2: -0.5}))
    batch = RolloutBatch.from_results([paid], pad_token_id=0, response_length=10)
    assert batch.responses.tolist() == [[2, 3, 4, 5, 6, 7, 7, 8, 9, 0]]
    assert batch.token_rewards.tolist() == [[0, 0, 0.25, 0, -0.5, 0, 0, 0, 1.0, 0]]
    assert batch.rewards.tolist() == [0.75]
    last = replace(row, reward=Reward(0.5, turns={3: 0.5, 1: 0.0}))
    assert RolloutBatch.from_results([last], pad_token_id=0).token_rewards.tolist() == [[0] * 8 + [0.5]]
    late = replace(row, reward=Reward(0.5, turns={7: 0.5}))  # of no turn that there is: it is not lost
    assert RolloutBatch.from_results([late], pad_token_id=0).token_rewards.tolist() == [[0] * 8 + [0.5]]


def test_a_row_that_nothing_could_score_is_masked_whatever_the_cause() -> None:
    unscored = result([1], sampled([2]), unscored=True, cause=Cause.TASK)
    batch = RolloutBatch.from_results([unscored, SHORT], pad_token_id=0)
    assert (batch.masked.tolist(), batch.scored.tolist()) == ([True, False], [False, True])
    assert batch.response_mask.tolist() == [[0], [1]]
    assert batch.causes[0] is Cause.TASK


IDS = st.lists(st.integers(0, 9), min_size=1, max_size=5)
TURN = st.tuples(st.booleans(), IDS)


@given(rows=st.lists(st.tuples(IDS, st.lists(TURN, max_size=4), st.booleans()), min_size=1, max_size=4))
def test_every_row_can_be_read_back(rows: list[tuple[list[int], list[tuple[bool, list[int]]], bool]]) -> None:
    results = [
        result(prompt, *[_segment(*turn) for turn in turns], uid=str(index), infra=infra, reward=1.5)
        for index, (prompt, turns, infra) in enumerate(rows)
    ]
    batch = RolloutBatch.from_results(results, pad_token_id=0)
    width = batch.prompts.shape[1]
    for row, each in enumerate(results):
        there = batch.attention_mask[row].bool()
        assert batch.prompts[row][there[:width]].tolist() == list(each.trajectory.prompt_ids)
        assert batch.responses[row][there[width:]].tolist() == list(each.trajectory.response_ids)
        assert batch.position_ids[row][there].tolist() == list(range(len(each.trajectory.ids)))
        mask = batch.response_mask[row][there[width:]].tolist()
        assert mask == ([0] * len(mask) if each.masked else list(each.trajectory.response_mask))
        assert batch.token_rewards[row].sum().item() == (1.5 if any(mask) else 0.0)
        assert (batch.weight_versions[row] >= 0).tolist() == batch.response_mask[row].bool().tolist()


def _segment(by_model: bool, ids: list[int]) -> Segment:
    return sampled(ids) if by_model else tool(ids)
