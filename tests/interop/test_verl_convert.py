"""Trajectories as verl's data, judged by verl: its types, its trainer's advantages, its batch operations."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

from rollout.batch import RolloutBatch
from tests.interop.results import result, sampled, tool

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    pytest.importorskip("verl", reason="verl is not installed: make test-interop")
    import torch
    from verl.protocol import DataProto
    from verl.trainer.ppo.core_algos import get_adv_estimator_fn
    from verl.utils.model import compute_position_id_with_mask

    from rollout.interop.verl.convert import agent_loop_output, data_proto

pytestmark = pytest.mark.verl

GOOD = result([1, 2, 3], sampled([4, 5]), tool([6, 7]), sampled([8], version="3"), uid="a", reward=1.0)
BAD = result([1, 2, 3], sampled([9]), uid="a", reward=0.0)
LOST = result([1, 2, 3], sampled([9, 9]), uid="a", infra=True)


def test_agent_loop_output_has_the_exact_tokens() -> None:
    output = agent_loop_output(GOOD, pad_token_id=0)
    assert (output.prompt_ids, output.response_ids) == ([1, 2, 3], [4, 5, 6, 7, 8])
    assert (output.response_mask, output.response_logprobs) == ([1, 1, 0, 0, 1], [-0.5, -0.5, 0.0, 0.0, -0.5])
    assert (output.reward_score, output.num_turns) == (1.0, 4)
    assert (output.metrics.generate_sequences, output.metrics.tool_calls) == (1.0, 0.5)
    assert (output.extra_fields["min_global_steps"], output.extra_fields["max_global_steps"]) == (1, 3)
    fields = output.as_dict()
    assert fields["response_mask"].tolist() == [1, 1, 0, 0, 1]
    assert fields["rm_scores"].tolist() == [0, 0, 0, 0, 1.0]
    assert fields["rollout_log_probs"].dtype == torch.float32


@pytest.mark.parametrize(
    ("version", "steps"), [("7", (7, 7)), ("7..9", (7, 9)), ("scripted", (None, None)), ("unknown", (None, None))]
)
def test_weight_versions_are_global_steps_where_they_are_verls(version: str, steps: tuple[int | None, ...]) -> None:
    fields = agent_loop_output(result([1], sampled([2], version=version)), pad_token_id=0).extra_fields
    assert (fields["min_global_steps"], fields["max_global_steps"]) == steps


def test_what_the_service_failed_is_not_trained_on_and_says_so() -> None:
    output = agent_loop_output(LOST, pad_token_id=0)
    assert (output.response_ids, output.response_mask, output.reward_score) == ([9, 9], [0, 0], 0.0)
    assert output.extra_fields["fairbox_masked"] is True
    assert output.extra_fields["fairbox_infra"] == "the executor is gone"
    empty = agent_loop_output(result([1], infra=True), pad_token_id=5)
    assert (empty.response_ids, empty.response_mask, empty.as_dict()["rm_scores"].tolist()) == ([5], [0], [0.0])


def test_unscored_trajectories_are_left_to_verls_reward() -> None:
    assert agent_loop_output(result([1], sampled([2])), pad_token_id=0).reward_score is None


def test_data_proto_is_what_verls_trainer_computes_with() -> None:
    data = data_proto(RolloutBatch.from_results([GOOD, LOST, BAD], pad_token_id=0), meta_info={"step": 1})
    assert isinstance(data, DataProto)
    data.check_consistency()
    assert (len(data), data.meta_info) == (3, {"step": 1})
    mask = data.batch["attention_mask"]
    assert torch.equal(data.batch["position_ids"], compute_position_id_with_mask(mask))
    assert data.batch["responses"].shape == data.batch["rollout_log_probs"].shape == data.batch["rm_scores"].shape
    assert data.non_tensor_batch["__num_turns__"].tolist() == [4, 2, 2]
    again = DataProto.concat([data[:1], data[1:]])
    assert len(again.chunk(3)) == 3


def advantages(data: DataProto, estimator: str) -> Any:
    """As verl's trainers ask for them."""
    values, _ = get_adv_estimator_fn(estimator)(
        token_level_rewards=data.batch["rm_scores"].clone(),
        response_mask=data.batch["response_mask"],
        index=data.non_tensor_batch["uid"],
        config={},
    )
    return values


@pytest.mark.parametrize("estimator", ["grpo", "rloo"])
def test_no_group_sees_a_masked_row(estimator: str) -> None:
    with_lost = data_proto(RolloutBatch.from_results([GOOD, LOST, BAD], pad_token_id=0))
    without = data_proto(RolloutBatch.from_results([GOOD, BAD], pad_token_id=0))
    assert with_lost.non_tensor_batch["uid"].tolist() == ["a", "a/masked/t-a", "a"]
    values = advantages(with_lost, estimator)
    assert torch.equal(values[[0, 2]], advantages(without, estimator))
    assert values[1].tolist() == [0.0] * 5
    assert values[0][0] > 0
    assert isinstance(with_lost.non_tensor_batch["masked"], np.ndarray)
