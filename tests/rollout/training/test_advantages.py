"""Advantages: the vectors of other trainers, plain references, and what has no influence."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout.batch import RolloutBatch
from rollout.loop import StopReason
from tests.interop.results import result, sampled, tool

torch = pytest.importorskip("torch", reason="torch is not installed (extra `engine`)")

from rollout.training import AdvantageSettings, Outcomes, estimate_advantages  # noqa: E402 - needs torch


def outcomes(
    rewards: list[float], groups: list[int], scored: list[bool] | None = None, mask: list[list[int]] | None = None
) -> Outcomes:
    counted = torch.tensor(mask or [[1]] * len(rewards), dtype=torch.bool)
    has_score = torch.tensor(scored or [True] * len(rewards))
    return Outcomes(torch.tensor(rewards), has_score, torch.tensor(groups), counted & has_score.unsqueeze(1))


def of_rows(inputs: Outcomes, **settings: Any) -> list[float]:
    """The advantage of each row's first token."""
    values: list[float] = estimate_advantages(inputs, AdvantageSettings(**settings)).advantages[:, 0].tolist()
    return values


@pytest.mark.parametrize(
    ("rewards", "groups", "settings", "wanted"),
    [
        # SkyRL's and verl's own functions gave these.
        ([1, 0, 0.5, 0.5], [0, 0, 1, 1], {}, [0.7071058, -0.7071058, 0, 0]),
        ([1, 0, 0.5, 0.5], [0, 0, 1, 1], {"norm_by_std": False}, [0.5, -0.5, 0, 0]),
        ([3, 0, 1, 2], [0] * 4, {}, [1.1618942, -1.1618942, -0.3872980, 0.3872980]),
        ([3, 0, 1, 2], [0] * 4, {"estimator": "rloo"}, [2, -2, -0.6666667, 0.6666667]),
        ([0.7, 3, 1], [1, 0, 0], {}, [0, 0.7071063, -0.7071063]),
    ],
)
def test_groups_have_the_known_values(
    rewards: list[float], groups: list[int], settings: dict[str, Any], wanted: list[float]
) -> None:
    assert of_rows(outcomes(rewards, groups), **settings) == pytest.approx(wanted, abs=1e-6)


def test_a_row_without_a_score_is_in_no_statistic_and_in_no_loss() -> None:
    for estimator in ("grpo", "rloo"):
        with_it = outcomes([1, 99, 0, float("nan")], [0, 0, 0, 0], [True, False, True, False])
        found = estimate_advantages(with_it, AdvantageSettings(estimator=estimator))
        alone = of_rows(outcomes([1, 0], [0, 0]), estimator=estimator)
        assert found.advantages[:, 0].tolist() == [alone[0], 0, alone[1], 0]
        assert found.mask[:, 0].tolist() == [True, False, True, False]


def test_a_row_alone_in_its_group_is_left_out() -> None:
    inputs = outcomes([1, 5, 2, 3], [0, 0, 1, 1], [True, False, True, True])
    left_out = estimate_advantages(inputs, AdvantageSettings())
    assert left_out.mask[:, 0].tolist() == [False, False, True, True]
    assert left_out.advantages[0, 0] == 0


def test_groups_without_a_difference_are_left_out_on_request() -> None:
    inputs = outcomes([1, 1, 0, 1], [0, 0, 1, 1])
    assert estimate_advantages(inputs, AdvantageSettings()).mask.all()
    for equal_groups in ("drop", "replace"):  # of which a step may still have some
        found = estimate_advantages(inputs, AdvantageSettings(equal_groups=equal_groups))
        assert found.mask[:, 0].tolist() == [False] * 2 + [True] * 2


@pytest.mark.parametrize("estimator", ["grpo", "rloo", "reinforce++", "gae"])
def test_what_a_length_limit_cut_off_counts_in_its_group_and_in_no_loss(estimator: str) -> None:
    inputs = replace(outcomes([3, 0, 1, 2], [0] * 4), truncated=torch.tensor([False, True, False, False]))
    if estimator == "gae":
        inputs = replace(inputs, values=torch.zeros(4, 1))
    every = estimate_advantages(inputs, AdvantageSettings(estimator=estimator))
    found = estimate_advantages(inputs, AdvantageSettings(estimator=estimator, drop_truncated=True))
    assert every.mask.all()
    assert found.mask[:, 0].tolist() == [True, False, True, True]
    assert found.advantages[:, 0].tolist() == [*every.advantages[:1, 0].tolist(), 0, *every.advantages[2:, 0].tolist()]


def test_a_batch_says_what_was_cut_off() -> None:
    cut = result([1], sampled([2, 3]), reward=0.0, stop_reason=StopReason.RESPONSE_LENGTH)
    whole = result([1], sampled([2, 3]), reward=1.0, stop_reason=StopReason.TURNS)
    batch = RolloutBatch.from_results([cut, whole], pad_token_id=0)
    truncated = Outcomes.of(batch).truncated
    assert truncated is not None
    assert truncated.tolist() == [True, False]


def test_every_sampled_token_of_a_row_has_its_advantage_and_no_other() -> None:
    batch = RolloutBatch.from_results(
        [
            result([1, 2], sampled([3, 4]), tool([5]), sampled([6]), uid="a", reward=1.0),
            result([1], sampled([3]), uid="a", reward=0.0),
            result([1], sampled([3, 3]), uid="a", infra=True),
        ],
        pad_token_id=0,
    )
    found = estimate_advantages(Outcomes.of(batch), AdvantageSettings())
    up = float(found.advantages[0, 0])
    assert up == pytest.approx(0.7071058, abs=1e-6)
    assert found.advantages.tolist() == [[up, up, 0, up], [-up, 0, 0, 0], [0] * 4]
    assert found.mask.tolist() == [[True, True, False, True], [True, False, False, False], [False] * 4]


def plain_gae(rewards: list[float], values: list[float], gamma: float, lam: float) -> list[float]:
    """A_t as the sum of (gamma lam)^l delta_{t+l}, equation 16 of the paper."""
    following = [*values, 0.0][1:]
    delta = [r + gamma * n - v for r, v, n in zip(rewards, values, following, strict=True)]
    return [sum((gamma * lam) ** k * d for k, d in enumerate(delta[t:])) for t in range(len(delta))]


@given(
    st.lists(st.tuples(st.booleans(), st.floats(-2, 2), st.floats(-2, 2)), min_size=1, max_size=8),
    st.floats(0.5, 1),
    st.floats(0, 1),
)
def test_gae_is_the_papers_over_the_sampled_tokens(
    tokens: list[tuple[bool, float, float]], gamma: float, lam: float
) -> None:
    mask = torch.tensor([[here for here, _, _ in tokens]])
    values = torch.tensor([[value for _, value, _ in tokens]])
    spread = torch.tensor([[reward for _, _, reward in tokens]])
    inputs = Outcomes(torch.tensor([1.5]), torch.tensor([True]), torch.tensor([0]), mask, values, spread_rewards=spread)
    settings = AdvantageSettings(estimator="gae", gamma=gamma, lam=lam, whiten=False)
    found = estimate_advantages(inputs, settings)
    counted = [(value, reward) for here, value, reward in tokens if here]
    rewards = [reward for _, reward in counted]
    wanted = plain_gae(rewards, [value for value, _ in counted], gamma, lam)
    assert found.returns is not None
    assert found.advantages[mask].tolist() == pytest.approx(wanted, abs=1e-5)
    expected = [a + value for a, (value, _) in zip(wanted, counted, strict=True)]
    assert found.returns[mask].tolist() == pytest.approx(expected, abs=1e-5)
    assert not found.advantages[~mask].any()
    discounted = AdvantageSettings(estimator="reinforce++", gamma=gamma, whiten=False)
    returns = [sum(gamma**k * r for k, r in enumerate(rewards[t:])) for t in range(len(rewards))]
    assert estimate_advantages(inputs, discounted).advantages[mask].tolist() == pytest.approx(returns, abs=1e-5)


def test_whitened_advantages_have_mean_0_and_variance_1_over_the_tokens_that_count() -> None:
    inputs = outcomes(
        [1, 0, 3, 50], [0, 0, 1, 1], [True, True, True, False], [[1, 1, 1], [1, 0, 0], [1, 1, 0], [1] * 3]
    )
    found = estimate_advantages(inputs, AdvantageSettings(estimator="reinforce++"))
    tokens = found.advantages[found.mask]
    assert len(tokens) == 6
    assert float(tokens.mean()) == pytest.approx(0, abs=1e-6)
    assert float(tokens.var()) == pytest.approx(1, abs=1e-5)
    assert not found.advantages[3].any()
    one = estimate_advantages(outcomes([2.0], [0]), AdvantageSettings(estimator="reinforce++"))
    assert one.advantages.tolist() == [[0.0]]


ROWS = st.lists(
    st.tuples(
        st.floats(-3, 3, width=16), st.integers(0, 2), st.booleans(), st.lists(st.booleans(), min_size=3, max_size=3)
    ),
    min_size=2,
    max_size=7,
)


@given(ROWS, st.sampled_from(["grpo", "rloo", "reinforce++", "gae"]), st.randoms(use_true_random=False))
def test_order_padding_and_what_is_masked_have_no_influence(
    rows: list[tuple[float, int, bool, list[bool]]], estimator: str, random: Any
) -> None:
    def found(rows: list[tuple[float, int, bool, list[bool]]], junk: float, pad: int) -> Any:
        mask = torch.tensor([bits + [False] * pad for _, _, _, bits in rows])
        scored = torch.tensor([scored for _, _, scored, _ in rows])
        counted = mask & scored.unsqueeze(1)
        rewards = torch.tensor([reward if scored else junk for reward, _, scored, _ in rows])
        values = torch.where(counted, torch.full(mask.shape, 0.25), torch.full(mask.shape, junk))
        groups = torch.tensor([group for _, group, _, _ in rows])
        inputs = Outcomes(rewards, scored, groups, counted, values)
        return estimate_advantages(inputs, AdvantageSettings(estimator=estimator)).advantages

    first = found(rows, 0.0, 0)
    order = list(range(len(rows)))
    random.shuffle(order)
    other = found([rows[n] for n in order], float("nan"), 2)
    assert not other[:, 3:].any()
    # GRPO divides by a deviation that may be tiny beside eps, which magnifies rounding.
    torch.testing.assert_close(other[:, :3], first[order], rtol=1e-3, atol=1e-4)
