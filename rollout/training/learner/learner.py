"""One training step: a batch of trajectories in, moved weights and figures out. Synchronous; no rollouts, no files.

With several `peers` each computes its share of the rows, and all of them know the same of every row and make the same
decisions: every peer calls the same methods with the same arguments.

Invariants: a step is a function of the weights, the optimizer, the batch, the seed and the step's number alone; its
gradient does not depend on how rows are split into micro-batches or over peers (beyond rounding); weights move only by
finite gradients. A step without a token to train on moves nothing, the schedule neither, and says so.

`plan_rounds` is pure: lengths in, row numbers out. Every process has a part in every collective of a sharded model, so
one that has fewer micro-batches than others gets empty ones. Each row that has a length above 0 is in exactly one
micro-batch of one process; every process has the same number of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.tensor import DTensor

from fairbox.errors import FairboxError
from rollout.batch import RolloutBatch
from rollout.training.algo.advantages import Advantages, AdvantageSettings, Outcomes, estimate_advantages
from rollout.training.algo.aggregation import token_weights
from rollout.training.algo.masked import kept, masked_mean
from rollout.training.algo.objective import Objective, ObjectiveInputs, ObjectiveSettings, objective
from rollout.training.learner.peers import ALONE, Peers
from rollout.training.learner.policy import Policy, TokenValues, row_lengths
from rollout.training.learner.sync import parse_version
from rollout.training.learner.update import UpdateSettings, make_optimizer, make_schedule

_OF_TOKENS = ("clipped", "approx_kl", "importance")
"""Sums that are divided by the tokens; the others are terms of the loss, whose parts add up to an optimizer step's."""


class StepFigures:
    """Collects the figures of the parts of a step."""

    def __init__(self) -> None:
        self._sums: dict[str, float] = {}
        self.updates = 0
        """Optimizer steps so far."""
        self._grad_norm = 0.0

    def add(self, sums: dict[str, float]) -> None:
        """Adds the sums of one micro-batch."""
        for name, value in sums.items():
            self._sums[name] = self._sums.get(name, 0.0) + value

    def updated(self, grad_norm: float) -> None:
        """Counts an optimizer step, whose gradient had this norm before it was scaled down."""
        self.updates += 1
        self._grad_norm += grad_norm

    def means(self) -> dict[str, float]:
        """Means of the figures, over the tokens or over the optimizer steps."""
        tokens = max(1.0, self._sums.get("tokens", 0.0))
        updates = max(1, self.updates)
        found = {
            name: value / (tokens if name in _OF_TOKENS else updates)
            for name, value in self._sums.items()
            if name != "tokens"
        }
        return found | {"updates": float(self.updates), "grad_norm": self._grad_norm / updates}


def batch_figures(batch: RolloutBatch, trained: torch.Tensor) -> dict[str, float]:
    """Figures of the trajectories, with rewards of scored ones alone. `trained` (bool [B, R]): tokens in the loss."""
    scored = batch.rewards[batch.scored & batch.is_last_step]
    return {
        "reward": float(scored.mean()) if len(scored) else float("nan"),
        "reward_std": float(scored.std(correction=0)) if len(scored) else float("nan"),
        "trajectories": float(batch.is_last_step.sum()),
        "masked": float((batch.masked & batch.is_last_step).sum()),
        "trained_rows": float(trained.any(1).sum()),
        "trained_tokens": float(trained.sum()),
        "response_tokens": float(batch.attention_mask[:, batch.prompts.shape[1] :].sum()) / len(batch),
        "turns": float(batch.turns.float().mean()),
    }


def of_step(batch: RolloutBatch, steps_done: int) -> torch.Tensor:
    """bool [B, R]: ids that the weights after so many steps sampled. All True if the batch names its weights in a way
    of its own."""
    steps = [parse_version(name) for name in batch.versions]
    if not any(steps):
        return torch.ones(batch.weight_versions.shape, dtype=torch.bool)
    theirs = [number for number, parsed in enumerate(steps) if parsed is not None and parsed[0] == steps_done]
    return torch.isin(batch.weight_versions, torch.tensor(theirs, dtype=batch.weight_versions.dtype))


def agreement(trainer: torch.Tensor, engine: torch.Tensor, mask: torch.Tensor) -> dict[str, float]:
    """Mean and largest difference of the trainer's and engine's logprobs over the True of `mask`, in natural
    logarithms. With weights of one version and both in float32 it is rounding."""
    difference = kept(trainer - engine, mask).abs()
    return {
        "logprob_difference": float(masked_mean(difference, mask)),
        "logprob_difference_max": float(difference.max()),
    }


def plan_micro_batches(lengths: Sequence[int], *, max_tokens: int) -> list[list[int]]:
    """Row numbers of each micro-batch: every row that has a length above 0 is in exactly one, longest first, so that
    rows of like length meet. A micro-batch costs its size times its longest row; the cost is at most `max_tokens`,
    except for a row that alone is longer.
    """
    order = sorted((row for row, length in enumerate(lengths) if length > 0), key=lambda row: (-lengths[row], row))
    batches: list[list[int]] = []
    for row in order:
        if batches and lengths[batches[-1][0]] * (len(batches[-1]) + 1) <= max_tokens:
            batches[-1].append(row)
        else:
            batches.append([row])
    return batches


def split_rows(lengths: Sequence[int], parts: int) -> list[list[int]]:
    """Row numbers of each part: the longest row first, each to the part with the fewest tokens so far, which leaves no
    part more than a third above the best split (Graham, 1969)."""
    order = sorted((row for row, length in enumerate(lengths) if length > 0), key=lambda row: (-lengths[row], row))
    rows: list[list[int]] = [[] for _ in range(parts)]
    tokens = [0] * parts
    for row in order:
        part = tokens.index(min(tokens))
        rows[part].append(row)
        tokens[part] += lengths[row]
    return rows


def plan_rounds(lengths: Sequence[int], parts: int, *, max_tokens: int) -> list[list[list[int]]]:
    """Micro-batches of each part, by `plan_micro_batches`; parts that have fewer than others get empty ones."""
    plans = []
    for rows in split_rows(lengths, parts):
        mine = set(rows)
        own = [length if row in mine else 0 for row, length in enumerate(lengths)]
        plans.append(plan_micro_batches(own, max_tokens=max_tokens))
    rounds = max(len(plan) for plan in plans)
    return [plan + [[] for _ in range(rounds - len(plan))] for plan in plans]


_WHOLE = StateDictOptions(full_state_dict=True, cpu_offload=True)
"""Options for a state in one piece, at the first peer's CPU."""


class Diverged(FairboxError):
    """A loss or a gradient is not finite. The weights are those from before it."""


@dataclass(frozen=True)
class LearnerSettings:
    """Settings of the training steps."""

    advantage: AdvantageSettings
    loss: ObjectiveSettings
    update: UpdateSettings
    temperature: float
    """Temperature of the rollouts."""
    max_response_tokens: int
    """The divisor of seq_mean_token_sum_norm."""
    steps: int
    """Steps of the whole run, for the schedule."""
    seed: int


@dataclass(frozen=True, slots=True)
class _Known:
    """Results of the weights at the start of a step. float32 [B, R], 0 at tokens that were not asked for."""

    logprobs: torch.Tensor
    values: torch.Tensor | None
    reference: torch.Tensor | None


class Learner:
    """`Learner(policy, settings)`; then `step(batch)` again and again. `steps_done` counts them."""

    def __init__(self, policy: Policy, settings: LearnerSettings, *, peers: Peers = ALONE) -> None:
        self.policy = policy
        self._peers = peers
        self.steps_done = 0
        self.logprobs = torch.zeros(0, 0)
        """float32 [B, R]: what the weights before the latest step gave the ids of its batch; 0 where its
        `response_mask` is."""
        self._settings = settings
        self._parameters = list(policy.named_parameters().values())
        head = () if policy.value_head is None else policy.value_head.parameters()
        self._optimizer = make_optimizer(self._parameters, settings.update, head=head)
        self._schedule = make_schedule(self._optimizer, settings.update, steps=settings.steps)

    def step(self, batch: RolloutBatch) -> dict[str, float]:
        """Trains on a batch and returns its figures by name. Raises Diverged."""
        sampled = Outcomes.of(batch).mask
        known = self._known(batch, sampled)
        self.logprobs = known.logprobs
        advantages = estimate_advantages(Outcomes.of(batch, values=known.values), self._settings.advantage)
        figures = StepFigures()
        for epoch in range(self._settings.update.epochs):
            for rows in self._minibatches(advantages.mask, epoch):
                self._update(batch, rows, known, advantages, figures)
        lr = float(self._schedule.get_last_lr()[0])
        if figures.updates:
            self._schedule.step()
        found = batch_figures(batch, advantages.mask)
        fresh = sampled & of_step(batch, self.steps_done)
        self.steps_done += 1
        if fresh.any():
            found |= agreement(known.logprobs, batch.rollout_log_probs, fresh)
        return found | figures.means() | {"lr": lr}

    def state(self) -> dict[str, Any]:
        """Everything that the next step depends on, as tensors and plain values, in one form however many peers there
        are. Only at the first peer there are tensors in it."""
        return {
            "steps_done": self.steps_done,
            "parameters": self.policy.trained_state(),
            "optimizer": self._moments(),
            "schedule": self._schedule.state_dict(),
            "rng": torch.get_rng_state(),
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Goes on where `state` was taken. Raises FairboxError for another model's."""
        self.policy.load_trained_state(state["parameters"])
        if state["optimizer"] is not None:
            set_optimizer_state_dict(self.policy.module, self._optimizer, state["optimizer"], options=_WHOLE)
        self._schedule.load_state_dict(state["schedule"])
        torch.set_rng_state(state["rng"])
        self.steps_done = state["steps_done"]

    def _moments(self) -> dict[str, Any] | None:
        """The optimizer's state; None before its first step, which torch would count as done to make one."""
        if not self._optimizer.state:
            return None
        return get_optimizer_state_dict(self.policy.module, self._optimizer, options=_WHOLE)

    def _minibatches(self, mask: torch.Tensor, epoch: int) -> Iterator[list[int]]:
        """Rows with a token to train on, in an order of this step and epoch, in parts of like size."""
        rows = mask.any(1).nonzero().squeeze(1)
        generator = torch.Generator().manual_seed(hash((self._settings.seed, self.steps_done, epoch)) % 2**63)
        order: list[int] = rows[torch.randperm(len(rows), generator=generator)].tolist()
        parts = min(self._settings.update.minibatches, len(order))
        for part in range(parts):
            yield order[part * len(order) // parts : (part + 1) * len(order) // parts]

    def _micro_batches(self, batch: RolloutBatch, mask: torch.Tensor) -> list[list[int]]:
        """This peer's micro-batches; with an empty one it takes part in what others compute."""
        lengths, most = row_lengths(batch, mask), self.policy.settings.micro_tokens
        return plan_rounds(lengths, self._peers.count, max_tokens=most)[self._peers.rank]

    @torch.no_grad()
    def _known(self, batch: RolloutBatch, mask: torch.Tensor) -> _Known:
        logprobs = torch.zeros(mask.shape)
        values = None if self.policy.value_head is None else torch.zeros(mask.shape)
        reference = torch.zeros(mask.shape) if self._settings.loss.needs_reference else None
        for rows in self._micro_batches(batch, mask):
            found = self._computed(batch, rows, mask)
            if found is not None:
                logprobs[rows] = found.logprobs.cpu()
                if values is not None and found.values is not None:
                    values[rows] = found.values.cpu()
            if reference is not None:
                with self.policy.as_reference():
                    found = self._computed(batch, rows, mask)
                if found is not None:
                    reference[rows] = found.logprobs.cpu()
        for each in (logprobs, values, reference):
            if each is not None:
                self._peers.add_up(each)  # of each row one peer has more than zeros
        return _Known(logprobs, values, reference)

    def _computed(self, batch: RolloutBatch, rows: list[int], mask: torch.Tensor) -> TokenValues | None:
        if not rows:
            self.policy.idle()
            return None
        return self.policy.compute(batch, rows, mask, temperature=self._settings.temperature)

    def _update(
        self, batch: RolloutBatch, rows: list[int], known: _Known, advantages: Advantages, figures: StepFigures
    ) -> None:
        """Makes one optimizer step on `rows`."""
        loss = self._settings.loss
        mask = torch.zeros_like(advantages.mask)
        mask[rows] = advantages.mask[rows]
        norm = self._settings.max_response_tokens
        weights = token_weights(mask, loss.aggregation, groups=batch.groups, norm=norm)
        self._optimizer.zero_grad(set_to_none=True)
        losses, sums = [], []
        for micro in self._micro_batches(batch, mask):
            if micro:
                found = self._objective(batch, micro, mask, weights, known, advantages)
                sums.append(found.sums)
            total_loss = found.loss if micro else self.policy.idle()
            losses.append(float(total_loss.detach()))
            # FSDP takes the mean over peers of what each computes; the sum is wanted.
            torch.autograd.backward(total_loss * self._peers.count)
        for theirs, parts in self._peers.all_of((losses, sums)):
            for each in theirs:
                if not math.isfinite(each):
                    raise Diverged(f"the loss of step {self.steps_done + 1} is {each}")
            for part in parts:
                figures.add(part)
        total = self._grad_norm()
        if not math.isfinite(total):
            raise Diverged(f"the norm of the gradient of step {self.steps_done + 1} is {total}")
        torch.nn.utils.clip_grads_with_norm_(self._parameters, self._settings.update.max_grad_norm, torch.tensor(total))
        self._optimizer.step()
        figures.updated(total)

    def _grad_norm(self) -> float:
        """Norm of the whole gradient, over all peers."""
        norm = torch.nn.utils.get_total_norm([each.grad for each in self._parameters if each.grad is not None])
        return float(norm.full_tensor() if isinstance(norm, DTensor) else norm)

    def _objective(
        self,
        batch: RolloutBatch,
        rows: list[int],
        mask: torch.Tensor,
        weights: torch.Tensor,
        known: _Known,
        advantages: Advantages,
    ) -> Objective:
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
