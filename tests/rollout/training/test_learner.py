"""Training steps on a batch that an engine sampled: what moves, by how much, and what must not matter."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rollout.batch import MaskedRows, RolloutBatch
from rollout.loop import TrajectoryResult
from tests.rollout.training.conftest import TEMPERATURE

torch = pytest.importorskip("torch", reason="torch is not installed (extra `engine`)")

from rollout.training import AdvantageSettings, ObjectiveSettings, Policy, PolicySettings  # noqa: E402 - needs torch
from rollout.training.learner.learner import Diverged, Learner, LearnerSettings  # noqa: E402
from rollout.training.learner.update import UpdateSettings, make_optimizer, make_schedule  # noqa: E402

UPDATE = UpdateSettings(lr=1e-2, epochs=2, minibatches=2)


def learner(
    model_dir: Path,
    policy: PolicySettings | None = None,
    advantage: AdvantageSettings | None = None,
    loss: ObjectiveSettings | None = None,
    update: UpdateSettings = UPDATE,
) -> Learner:
    advantage, loss = advantage or AdvantageSettings(), loss or ObjectiveSettings()
    made = Policy.load(
        model_dir,
        policy or PolicySettings(),
        value_head=advantage.estimator == "gae",
        reference=loss.needs_reference,
    )
    settings = LearnerSettings(advantage, loss, update, TEMPERATURE, max_response_tokens=16, steps=10, seed=3)
    return Learner(made, settings)


def moved(one: Learner, other: Learner) -> float:
    pairs = zip(one.policy.trained_state().values(), other.policy.trained_state().values(), strict=True)
    return max(float((a - b).abs().max()) for a, b in pairs)


EVERYTHING = ObjectiveSettings(kl_coef=0.1, entropy_coef=0.01)


@pytest.mark.parametrize(
    "advantage",
    [
        AdvantageSettings("grpo"),
        AdvantageSettings("rloo"),
        AdvantageSettings("reinforce++"),
        AdvantageSettings("gae"),
    ],
    ids=lambda settings: settings.estimator,
)
def test_steps_do_not_depend_on_the_split_into_micro_batches(
    mini_dir: Path, sampled_batch: RolloutBatch, advantage: AdvantageSettings
) -> None:
    whole = learner(mini_dir, advantage=advantage, loss=EVERYTHING)
    parts = learner(mini_dir, PolicySettings(micro_tokens=1), advantage=advantage, loss=EVERYTHING)
    padded = learner(mini_dir, PolicySettings(micro_tokens=36), advantage=advantage, loss=EVERYTHING)
    start = learner(mini_dir, advantage=advantage, loss=EVERYTHING)
    update = UpdateSettings(lr=1e-2)  # one update: AdamW magnifies the rounding of tiny gradients from the second on
    for each in (whole, parts, padded):
        each._settings = replace(each._settings, update=update)
    found = [each.step(sampled_batch) for each in (whole, parts, padded)]
    assert moved(whole, start) > 1e-3
    for other in found[1:]:
        assert other == pytest.approx(found[0], rel=1e-3, abs=1e-5)
    gradients = [[value.grad for value in each._parameters] for each in (whole, parts, padded)]
    for others in gradients[1:]:
        for mine, theirs in zip(gradients[0], others, strict=True):
            torch.testing.assert_close(theirs, mine, rtol=1e-3, atol=1e-5)


def test_masked_rows_change_nothing(mini_dir: Path, sampled_results: list[TrajectoryResult]) -> None:
    kept, dropped = (RolloutBatch.from_results(sampled_results, pad_token_id=2, masked=masked) for masked in MaskedRows)
    assert (len(kept), len(dropped)) == (4, 3)
    one, other = learner(mini_dir), learner(mini_dir)
    figures = [one.step(kept), other.step(dropped)]
    assert moved(one, other) == 0
    assert [each["masked"] for each in figures] == [1, 0]
    assert figures[0]["grad_norm"] == figures[1]["grad_norm"] > 0


def test_the_first_update_is_on_policy_and_the_engine_agrees(mini_dir: Path, sampled_batch: RolloutBatch) -> None:
    found = learner(mini_dir, update=UpdateSettings(lr=1e-3)).step(sampled_batch)
    assert (found["clipped"], found["importance"]) == (0.0, 1.0)
    assert found["approx_kl"] == pytest.approx(0, abs=1e-9)
    assert found["logprob_difference_max"] < 1e-4
    assert (found["trajectories"], found["trained_rows"], found["reward"]) == (4, 2, 1.0)
    assert found["entropy"] > 0


def test_training_makes_what_was_good_more_likely(mini_dir: Path, sampled_batch: RolloutBatch) -> None:
    made = learner(mini_dir, update=UpdateSettings(lr=3e-3))
    mask = sampled_batch.response_mask.bool()

    def likely() -> Any:
        with torch.no_grad():
            return made.policy.compute(sampled_batch, [0, 1], mask, temperature=TEMPERATURE).logprobs.sum(1)

    before = likely()
    for _ in range(4):
        made.step(sampled_batch)
    bad, good = (likely() - before).tolist()  # rewards 0 and 1 of one group
    assert good > 0.5
    assert bad < -0.5


def test_value_loss_falls(mini_dir: Path, sampled_batch: RolloutBatch) -> None:
    made = learner(mini_dir, advantage=AdvantageSettings("gae"), update=UpdateSettings(lr=1e-2))
    losses = [made.step(sampled_batch)["value_loss"] for _ in range(6)]
    assert losses[-1] < 0.5 * losses[0], losses


def test_a_state_from_before_the_first_update_changes_nothing(mini_dir: Path, sampled_batch: RolloutBatch) -> None:
    alone, saved, loaded = learner(mini_dir), learner(mini_dir), learner(mini_dir)
    loaded.load_state(saved.state())
    for each in (alone, saved, loaded):
        each.step(sampled_batch)
    assert moved(alone, saved) == moved(alone, loaded) == 0


def test_a_batch_without_anything_to_train_on_moves_nothing(
    mini_dir: Path, sampled_results: list[TrajectoryResult]
) -> None:
    made, start = learner(mini_dir), learner(mini_dir)
    found = made.step(RolloutBatch.from_results(sampled_results[3:], pad_token_id=2))
    assert (found["updates"], found["trained_tokens"], moved(made, start)) == (0, 0, 0)


@pytest.mark.parametrize("where", ["loss", "gradient"])
def test_what_is_not_finite_moves_no_weight(mini_dir: Path, sampled_batch: RolloutBatch, where: str) -> None:
    made = learner(mini_dir, update=UpdateSettings(lr=1e-2))
    rewards = sampled_batch.rewards.clone()
    if where == "loss":
        batch = replace(sampled_batch, rewards=rewards.index_fill(0, torch.tensor([0]), float("nan")))
    else:
        batch = replace(sampled_batch, rewards=rewards)
        weight: Any = made._parameters[0]
        weight.register_hook(lambda gradient: gradient * float("nan"))
    before = made.policy.trained_state()
    with pytest.raises(Diverged, match="of step 1 is nan"):
        made.step(batch)
    assert all(torch.equal(value, before[name]) for name, value in made.policy.trained_state().items())


@pytest.mark.parametrize(
    ("settings", "wanted"),
    [
        (UpdateSettings(lr=2.0), [2, 2, 2, 2, 2]),
        (UpdateSettings(lr=2.0, warmup_steps=2), [1, 2, 2, 2, 2]),
        (UpdateSettings(lr=2.0, schedule="linear"), [2, 1.5, 1, 0.5, 0]),
        (UpdateSettings(lr=2.0, schedule="cosine"), [2, 1.7071068, 1, 0.2928932, 0]),
    ],
)
def test_schedules_have_the_known_values(settings: UpdateSettings, wanted: list[float]) -> None:
    optimizer = make_optimizer([torch.nn.Parameter(torch.zeros(1))], settings)
    schedule = make_schedule(optimizer, settings, steps=4)
    found = []
    for _ in wanted:
        found.append(schedule.get_last_lr()[0])
        optimizer.step()
        schedule.step()
    assert found == pytest.approx(wanted)


@pytest.mark.parametrize(("value_lr", "rate"), [(None, 1e-2), (0.05, 0.05)])
def test_the_value_head_learns_at_a_rate_of_its_own(
    mini_dir: Path, sampled_batch: RolloutBatch, value_lr: float | None, rate: float
) -> None:
    update = UpdateSettings(lr=1e-3, value_lr=value_lr)
    trained, start = (learner(mini_dir, advantage=AdvantageSettings("gae"), update=update) for _ in range(2))
    trained.step(sampled_batch)
    far = {"head": 0.0, "model": 0.0}
    for name, before in start.policy.trained_state().items():
        part = "head" if name.startswith("value_head.") else "model"
        far[part] = max(far[part], float((trained.policy.trained_state()[name] - before).abs().max()))
    # The first step of Adam moves a weight by the learning rate.
    assert far == pytest.approx({"head": rate, "model": 1e-3}, rel=1e-2)
    again = learner(mini_dir, advantage=AdvantageSettings("gae"), update=update)
    file = io.BytesIO()
    torch.save(trained.state(), file)
    file.seek(0)
    again.load_state(torch.load(file))
    for each in (trained, again):
        each.step(sampled_batch)
    assert moved(trained, again) == 0
