"""One training step: a batch of trajectories in, moved weights and figures out. Synchronous; no rollouts, no files.

Invariants: a step is a function of the weights, the optimizer, the batch, the seed and the step's number alone; its
gradient does not depend on how rows are split into micro-batches (beyond rounding); weights move only by finite
gradients. A step without a token to train on moves nothing, the schedule neither, and says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from fairbox.errors import FairboxError
from rollout.batch import RolloutBatch
from rollout.training.advantages import Advantages, AdvantageSettings, Outcomes, estimate_advantages
from rollout.training.aggregation import token_weights
from rollout.training.figures import StepFigures, agreement, batch_figures, of_version
from rollout.training.kl import kl_penalty
from rollout.training.layout import row_lengths
from rollout.training.objective import ObjectiveInputs, ObjectiveSettings, objective
from rollout.training.packing import plan_micro_batches
from rollout.training.policy import Policy
from rollout.training.sync import version_name
from rollout.training.update import UpdateSettings, make_optimizer, make_schedule

__all__ = ["Diverged", "Learner", "LearnerSettings"]


class Diverged(FairboxError):  # noqa: N818 - what became of a run
    """A loss or a gradient is not finite. The weights are those from before it."""


@dataclass(frozen=True)
class LearnerSettings:
    """What a step does."""

    advantage: AdvantageSettings
    loss: ObjectiveSettings
    update: UpdateSettings
    temperature: float
    """That of the rollouts."""
    max_response_tokens: int
    """The divisor of seq_mean_token_sum_norm where `loss.norm` is None."""
    steps: int
    """Of the whole run, for the schedule."""
    seed: int


@dataclass(frozen=True, slots=True)
class _Known:
    """What the weights at the start of a step say. float32 [B, R], 0 where nothing was asked for."""

    logprobs: torch.Tensor
    values: torch.Tensor | None
    reference: torch.Tensor | None


class Learner:
    """`Learner(policy, settings)`; then `step(batch)` again and again. `steps_done` counts them."""

    def __init__(self, policy: Policy, settings: LearnerSettings) -> None:
        self.policy = policy
        self.steps_done = 0
        self._settings = settings
        self._parameters = list(policy.named_parameters().values())
        self._optimizer = make_optimizer(self._parameters, settings.update)
        self._schedule = make_schedule(self._optimizer, settings.update, steps=settings.steps)

    def step(self, batch: RolloutBatch) -> dict[str, float]:
        """Trains on a batch: its figures by name. Raises Diverged."""
        sampled, version = Outcomes.of(batch).mask, version_name(self.steps_done)
        known = self._known(batch, sampled)
        penalties = None
        if self._settings.loss.kl_reward_coef:
            assert known.reference is not None
            k1 = kl_penalty(known.logprobs, known.reference, sampled, kind="k1")
            penalties = -self._settings.loss.kl_reward_coef * k1
        outcomes = Outcomes.of(batch, penalties=penalties, values=known.values)
        advantages = estimate_advantages(outcomes, self._settings.advantage)
        figures = StepFigures()
        for epoch in range(self._settings.update.epochs):
            for rows in self._minibatches(advantages.mask, epoch):
                self._update(batch, rows, known, advantages, figures)
        lr = float(self._schedule.get_last_lr()[0])
        if figures.updates:
            self._schedule.step()
        self.steps_done += 1
        found = batch_figures(batch, advantages.mask)
        fresh = sampled & of_version(batch, version)
        if fresh.any():
            found |= agreement(known.logprobs, batch.rollout_log_probs, fresh)
        return found | figures.means() | {"lr": lr}

    def state(self) -> dict[str, Any]:
        """Everything that the next step depends on, as tensors and plain values."""
        return {
            "steps_done": self.steps_done,
            "parameters": self.policy.trained_state(),
            "optimizer": self._optimizer.state_dict(),
            "schedule": self._schedule.state_dict(),
            "rng": torch.get_rng_state(),
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Goes on where `state` was taken. Raises FairboxError for another model's."""
        self.policy.load_trained_state(state["parameters"])
        self._optimizer.load_state_dict(state["optimizer"])
        self._schedule.load_state_dict(state["schedule"])
        torch.set_rng_state(state["rng"])
        self.steps_done = state["steps_done"]

    def _minibatches(self, mask: torch.Tensor, epoch: int) -> Iterator[list[int]]:
        """Rows with a token to train on, in an order of this step and epoch, in parts of like size."""
        rows = mask.any(1).nonzero().squeeze(1)
        generator = torch.Generator().manual_seed(hash((self._settings.seed, self.steps_done, epoch)) % 2**63)
        order: list[int] = rows[torch.randperm(len(rows), generator=generator)].tolist()
        parts = min(self._settings.update.minibatches, len(order))
        for part in range(parts):
            yield order[part * len(order) // parts : (part + 1) * len(order) // parts]

    def _micro_batches(self, batch: RolloutBatch, mask: torch.Tensor) -> list[list[int]]:
        settings = self.policy.settings
        lengths = row_lengths(batch, mask)
        return plan_micro_batches(lengths, max_tokens=settings.micro_tokens, packed=settings.packing)

    @torch.no_grad()
    def _known(self, batch: RolloutBatch, mask: torch.Tensor) -> _Known:
        logprobs = torch.zeros(mask.shape)
        values = None if self.policy.value_head is None else torch.zeros(mask.shape)
        reference = torch.zeros(mask.shape) if self._settings.loss.needs_reference else None
        for rows in self._micro_batches(batch, mask):
            found = self.policy.compute(batch, rows, mask, temperature=self._settings.temperature)
            logprobs[rows] = found.logprobs.cpu()
            if values is not None and found.values is not None:
                values[rows] = found.values.cpu()
            if reference is not None:
                with self.policy.as_reference():
                    found = self.policy.compute(batch, rows, mask, temperature=self._settings.temperature)
                reference[rows] = found.logprobs.cpu()
        return _Known(logprobs, values, reference)

    def _update(
        self, batch: RolloutBatch, rows: list[int], known: _Known, advantages: Advantages, figures: StepFigures
    ) -> None:
        """One optimizer step on `rows`."""
        loss = self._settings.loss
        mask = torch.zeros_like(advantages.mask)
        mask[rows] = advantages.mask[rows]
        norm = loss.norm or self._settings.max_response_tokens
        weights = token_weights(mask, loss.aggregation, groups=batch.groups, norm=norm)
        self._optimizer.zero_grad(set_to_none=True)
        for micro in self._micro_batches(batch, mask):
            found = self._objective(batch, micro, mask, weights, known, advantages)
            if not torch.isfinite(found.loss):
                raise Diverged(f"the loss of step {self.steps_done + 1} is {found.loss.item()}")
            found.loss.backward()
            figures.add(found.sums)
        total = torch.nn.utils.clip_grad_norm_(self._parameters, self._settings.update.max_grad_norm)
        if not torch.isfinite(total):
            raise Diverged(f"the norm of the gradient of step {self.steps_done + 1} is {total.item()}")
        self._optimizer.step()
        figures.updated(float(total))

    def _objective(
        self,
        batch: RolloutBatch,
        rows: list[int],
        mask: torch.Tensor,
        weights: torch.Tensor,
        known: _Known,
        advantages: Advantages,
    ) -> Any:
        settings, device = self._settings, self.policy.settings.device
        bonus = settings.loss.entropy_coef > 0
        found = self.policy.compute(batch, rows, mask, temperature=settings.temperature, entropy_gradient=bonus)

        def cut(values: torch.Tensor | None) -> torch.Tensor | None:
            return None if values is None else values[rows].to(device)

        inputs = ObjectiveInputs(
            logprobs=found.logprobs,
            old_logprobs=known.logprobs[rows].to(device),
            rollout_logprobs=batch.rollout_log_probs[rows].to(device),
            advantages=advantages.advantages[rows].to(device),
            mask=mask[rows].to(device),
            weights=weights[rows].to(device),
            entropy=found.entropy,
            reference_logprobs=cut(known.reference),
            values=found.values if advantages.returns is not None else None,
            old_values=cut(known.values),
            returns=cut(advantages.returns),
        )
        return objective(inputs, settings.loss)
