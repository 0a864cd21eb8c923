"""A training step on a GPU is that on the CPU, to the rounding of float32."""

from __future__ import annotations

from pathlib import Path

import pytest

from rollout.batch import RolloutBatch
from tests.rollout.training.test_learner import EVERYTHING, learner

torch = pytest.importorskip("torch", reason="torch is not installed (extra `engine`)")

from rollout.training import AdvantageSettings, PolicySettings  # noqa: E402 - needs torch
from rollout.training.learner.update import UpdateSettings  # noqa: E402

pytestmark = pytest.mark.gpu

GPU = PolicySettings(device="cuda")
CLOSE = 1e-4
ONE = UpdateSettings(lr=1e-3)
"""One optimizer step: from the second on AdamW magnifies the rounding of tiny gradients."""


@pytest.mark.parametrize("estimator", ["grpo", "rloo", "reinforce++", "gae"])
def test_figures_and_gradients_are_those_of_the_cpu(
    mini_dir: Path, sampled_batch: RolloutBatch, estimator: str
) -> None:
    advantage = AdvantageSettings(estimator)
    here, there = (
        learner(mini_dir, policy, advantage=advantage, loss=EVERYTHING, update=ONE)
        for policy in (PolicySettings(), GPU)
    )
    wanted, found = here.step(sampled_batch), there.step(sampled_batch)
    assert found == pytest.approx(wanted, rel=1e-3, abs=CLOSE)
    assert found["logprob_difference_max"] < CLOSE  # the engine that sampled computes on the CPU
    for mine, theirs in zip(here._parameters, there._parameters, strict=True):
        assert theirs.is_cuda
        assert theirs.grad is not None
        torch.testing.assert_close(theirs.grad.cpu(), mine.grad, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(
    "policy",
    [
        PolicySettings(device="cuda", micro_tokens=20),
        PolicySettings(device="cuda", micro_tokens=20, recompute=True),
        PolicySettings(device="cuda", lora_rank=4),
    ],
    ids=["micro-batches", "recomputed", "adapters"],
)
def test_ways_to_save_memory_change_no_figure(
    mini_dir: Path, sampled_batch: RolloutBatch, policy: PolicySettings
) -> None:
    plain = learner(mini_dir, GPU, loss=EVERYTHING, update=ONE).step(sampled_batch)
    found = learner(mini_dir, policy, loss=EVERYTHING, update=ONE).step(sampled_batch)
    if policy.lora_rank:
        plain["grad_norm"] = found["grad_norm"]  # other parameters
    assert found == pytest.approx(plain, rel=1e-3, abs=CLOSE)


def test_bfloat16_computes_in_it_and_keeps_weights_in_float32(mini_dir: Path, sampled_batch: RolloutBatch) -> None:
    made = learner(mini_dir, PolicySettings(device="cuda", dtype="bfloat16"), loss=EVERYTHING, update=ONE)
    exact = learner(mini_dir, GPU, loss=EVERYTHING, update=ONE).step(sampled_batch)
    found = made.step(sampled_batch)
    for name in ("policy_loss", "grad_norm", "entropy"):  # three digits of bfloat16
        assert found[name] == pytest.approx(exact[name], rel=0.05)
    assert found["logprob_difference_max"] > CLOSE
    assert {value.dtype for value in made._parameters} == {torch.float32}


def test_a_checkpoint_goes_on_on_the_other_device(mini_dir: Path, sampled_batch: RolloutBatch) -> None:
    begun = learner(mini_dir, GPU, loss=EVERYTHING, update=ONE)
    begun.step(sampled_batch)
    here, there = (learner(mini_dir, policy, loss=EVERYTHING, update=ONE) for policy in (PolicySettings(), GPU))
    for each in (here, there):
        each.load_state(begun.state())
        assert each.steps_done == 1
    wanted = begun.step(sampled_batch)
    for each in (here, there):
        assert each.step(sampled_batch) == pytest.approx(wanted, rel=1e-2, abs=1e-3)
