"""Losses: values and gradients of plain references in float64, and what has no influence."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.rollout.training.plain_losses import PLAIN, aggregate

torch = pytest.importorskip("torch", reason="torch is not installed (extra `engine`)")

from rollout.training import (  # noqa: E402 - needs torch
    AGGREGATIONS,
    CorrectionSettings,
    ObjectiveInputs,
    ObjectiveSettings,
    PolicyInputs,
    PolicyLossSettings,
    importance_weights,
    kl_penalty,
    objective,
    policy_loss,
    token_weights,
    value_losses,
)

ROWS, WIDTH = 5, 6
LOW, HIGH, C, NORM = 0.2, 0.3, 3.0, 16
GROUPS = [0, 0, 1, 1, 2]


def tensors(seed: int, dtype: Any = None) -> dict[str, Any]:
    """Random inputs whose ratios lie on both sides of every clip; the last row has no token that counts."""
    random = torch.Generator().manual_seed(seed)
    shape, kind = (ROWS, WIDTH), dtype or torch.float64
    logprobs = -torch.rand(shape, generator=random, dtype=kind) * 3
    mask = torch.rand(shape, generator=random) < 0.7
    mask[-1] = False
    advantage = torch.randn((ROWS, 1), generator=random, dtype=kind).expand(shape).clone()
    old = logprobs + torch.randn(shape, generator=random, dtype=kind) * 0.8
    return {
        "logprobs": logprobs.requires_grad_(),
        "old_logprobs": old,
        "rollout_logprobs": old + torch.randn(shape, generator=random, dtype=kind) * 0.3,
        "advantages": advantage,
        "mask": mask,
        "entropy": torch.rand(shape, generator=random, dtype=kind),
        "reference_logprobs": logprobs.detach() + torch.randn(shape, generator=random, dtype=kind) * 0.5,
    }


def gradient_of(loss: Any, of: Any) -> Any:
    (gradient,) = torch.autograd.grad(loss, of)
    return gradient


@pytest.mark.parametrize(
    ("kind", "aggregation"),
    # The sequence form of GSPO, which the reference has, equals the token form under the mean of each row alone.
    [(kind, how) for kind in PLAIN for how in AGGREGATIONS if kind != "gspo" or how == "sequence_mean"],
)
def test_value_and_gradient_are_those_of_the_formula(kind: str, aggregation: str) -> None:
    settings = PolicyLossSettings(kind=kind, clip_low=LOW, clip_high=HIGH, clip_c=C)
    for seed in range(4):
        batch = tensors(seed)
        mask = batch["mask"]
        weights = token_weights(mask, aggregation, groups=torch.tensor(GROUPS), norm=NORM)
        found = policy_loss(PolicyInputs(batch["logprobs"], batch["old_logprobs"], batch["advantages"], mask), settings)
        loss = (weights * found.losses).sum()
        rows = [
            [
                (batch["logprobs"][b, t], float(batch["old_logprobs"][b, t]), float(batch["advantages"][b, t]))
                for t in range(WIDTH)
                if mask[b, t]
            ]
            for b in range(ROWS)
        ]
        wanted = aggregate([PLAIN[kind](row, LOW, HIGH, C) for row in rows], GROUPS, aggregation, NORM)
        assert loss.item() == pytest.approx(wanted.item(), rel=1e-5)
        expected = gradient_of(wanted, batch["logprobs"])
        assert expected.any()
        torch.testing.assert_close(gradient_of(loss, batch["logprobs"]), expected, rtol=1e-5, atol=1e-8)


def test_clipped_tokens_are_those_without_a_gradient() -> None:
    batch = tensors(0)
    inputs = PolicyInputs(batch["logprobs"], batch["old_logprobs"], batch["advantages"], batch["mask"])
    for kind in ("ppo", "dual_clip"):
        found = policy_loss(inputs, PolicyLossSettings(kind=kind))
        gradient = gradient_of(found.losses.sum(), batch["logprobs"])
        assert found.clipped.any()
        assert torch.equal(found.clipped, (gradient == 0) & batch["mask"])


def test_the_kl_has_the_values_and_gradients_of_its_formula() -> None:
    batch = tensors(1)
    mask, reference = batch["mask"], batch["reference_logprobs"]
    found = kl_penalty(batch["logprobs"], reference, mask)
    differences = [reference[at] - batch["logprobs"][at] for at in zip(*torch.where(mask), strict=True)]
    wanted = sum(difference.exp() - 1 - difference for difference in differences)
    assert found.sum().item() == pytest.approx(wanted.item())
    assert not found[~mask].any()
    torch.testing.assert_close(gradient_of(found.sum(), batch["logprobs"]), gradient_of(wanted, batch["logprobs"]))
    # 0.5 and 0.25 under policies that give 0.5 and 0.25 to two ids and the rest to a third.
    p, q = torch.tensor([0.5, 0.25, 0.25]).double(), torch.tensor([0.25, 0.25, 0.5]).double()
    estimate = kl_penalty(p.log()[None], q.log()[None], torch.ones(1, 3, dtype=torch.bool))
    assert float((p * estimate).sum()) == pytest.approx(float((p * (p / q).log()).sum()))
    assert (estimate >= 0).all()


@pytest.mark.parametrize(
    ("settings", "wanted"),
    [
        ({"level": "none"}, [[1, 1, 1], [1, 1, 1]]),
        ({"level": "token", "cap": 2.0}, [[2, 0.5, 0], [1.5, 0, 0]]),
        ({"level": "sequence", "cap": 5.0}, [[2, 2, 0], [1.5, 0, 0]]),
        ({"level": "sequence", "cap": 1.0}, [[1, 1, 0], [1, 0, 0]]),
        ({"level": "geometric", "cap": 5.0}, [[math.sqrt(2), math.sqrt(2), 0], [1.5, 0, 0]]),
    ],
)
def test_importance_weights_have_the_known_values(settings: dict[str, Any], wanted: list[list[float]]) -> None:
    ratios = torch.tensor([[4.0, 0.5, 9.0], [1.5, 9.0, 9.0]])
    mask = torch.tensor([[True, True, False], [True, False, False]])
    found = importance_weights(ratios.log() - 1, torch.full((2, 3), -1.0), mask, CorrectionSettings(**settings))
    torch.testing.assert_close(found, torch.tensor(wanted, dtype=torch.float32))


def test_the_value_loss_is_that_of_the_formula() -> None:
    values = torch.tensor([[0.5, 2.0, 9.0]], dtype=torch.float64, requires_grad=True)
    old, returns = torch.tensor([[0.0, 1.9, 0.0]]).double(), torch.tensor([[1.0, 1.0, 0.0]]).double()
    mask = torch.tensor([[True, True, False]])
    found = value_losses(values, old, returns, mask, clip=0.2)
    # 0.5 clipped to 0.2 is further from 1; 2.0 is within 0.2 of 1.9.
    torch.testing.assert_close(found, torch.tensor([[0.32, 0.5, 0.0]]).double())
    assert gradient_of(found.sum(), values).tolist() == [[0.0, 1.0, 0.0]]


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_the_sum_of_parts_is_the_whole(aggregation: str) -> None:
    """However the rows of an optimizer step are split, the gradient is that of one batch."""
    settings = ObjectiveSettings(
        policy=PolicyLossSettings(kind="ppo"), kl_coef=0.1, entropy_coef=0.01, correction=CorrectionSettings("token")
    )
    batch = tensors(2)
    weights = token_weights(batch["mask"], aggregation, groups=torch.tensor(GROUPS), norm=NORM)
    whole = objective(ObjectiveInputs(**batch, weights=weights), settings)
    wanted = gradient_of(whole.loss, batch["logprobs"])
    for parts in ([[0], [1], [2], [3], [4]], [[4, 0], [3, 1, 2]]):
        loss: Any = 0.0
        sums = dict.fromkeys(whole.sums, 0.0)
        for rows in parts:
            part = objective(
                ObjectiveInputs(**{name: value[rows] for name, value in batch.items()}, weights=weights[rows]), settings
            )
            loss = loss + part.loss
            sums = {name: sums[name] + value for name, value in part.sums.items()}
        torch.testing.assert_close(gradient_of(loss, batch["logprobs"]), wanted)
        assert sums == pytest.approx(whole.sums)


@given(st.integers(0, 1000), st.sampled_from(sorted(PLAIN)), st.sampled_from(["none", "token", "sequence"]))
def test_order_padding_and_what_is_masked_have_no_influence(seed: int, kind: str, level: str) -> None:
    settings = ObjectiveSettings(
        policy=PolicyLossSettings(kind=kind), kl_coef=0.1, entropy_coef=0.1, correction=CorrectionSettings(level)
    )
    batch = tensors(seed)
    groups = torch.tensor(GROUPS)

    def gradient(batch: dict[str, Any], groups: Any) -> tuple[float, Any]:
        weights = token_weights(batch["mask"], "prompt_mean", groups=groups)
        found = objective(ObjectiveInputs(**batch, weights=weights), settings)
        return found.loss.item(), gradient_of(found.loss, batch["logprobs"])

    loss, wanted = gradient(batch, groups)
    order = torch.randperm(ROWS, generator=torch.Generator().manual_seed(seed))
    changed = {}
    for name, value in batch.items():
        wide = torch.nn.functional.pad(value.detach()[order], (0, 2))
        if name != "mask":
            inside = torch.nn.functional.pad(batch["mask"][order], (0, 2))
            wide = torch.where(inside, wide, torch.tensor(float("nan"), dtype=wide.dtype))
        changed[name] = wide
    changed["logprobs"].requires_grad_()
    other_loss, other = gradient(changed, groups[order])
    assert other_loss == pytest.approx(loss)
    torch.testing.assert_close(other[:, :WIDTH], wanted[order])
    assert not other[:, WIDTH:].any()


def test_the_ratio_may_be_taken_to_the_rollouts_logprobs() -> None:
    batch = tensors(3)
    weights = token_weights(batch["mask"], "token_mean")
    for anchor, name in (("trainer", "old_logprobs"), ("rollout", "rollout_logprobs")):
        found = objective(ObjectiveInputs(**batch, weights=weights), ObjectiveSettings(anchor=anchor))
        plain = policy_loss(
            PolicyInputs(batch["logprobs"], batch[name], batch["advantages"], batch["mask"]), PolicyLossSettings()
        )
        assert found.sums["policy_loss"] == pytest.approx((weights * plain.losses).sum().item())


def test_nothing_to_train_on_is_a_loss_of_zero_with_a_gradient_of_zero() -> None:
    batch = tensors(0)
    batch["mask"] = torch.zeros_like(batch["mask"])
    for aggregation in AGGREGATIONS:
        weights = token_weights(batch["mask"], aggregation, groups=torch.tensor(GROUPS), norm=NORM)
        found = objective(ObjectiveInputs(**batch, weights=weights), ObjectiveSettings(kl_coef=0.1))
        assert found.loss.item() == 0.0
        assert not gradient_of(found.loss, batch["logprobs"]).any()
