"""Figures of an asynchronous run: how old what a step is trained on is, and who waits for whom. Pure; time is an
argument.

`async/staleness_*` are of groups, in steps. `async/lag_0`, `async/lag_1` ... are shares of the sampled tokens: how many
steps lie between the weights that sampled one and those that it moves; `async/lag_more` is beyond the bound of groups.
Shares of time are of the time since the step before was taken.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from rollout.loop.results import TrajectoryResult
from rollout.tokens.segment import SegmentKind
from rollout.training.staleness import LedgerStatistics, TakenGroup
from rollout.training.sync import steps_of

__all__ = ["StreamFigures", "token_lags"]


@dataclass(frozen=True, slots=True)
class _Mark:
    """Where things were when the step before was taken."""

    at: float
    engine_busy_s: float
    lost: int


def token_lags(results: Sequence[TrajectoryResult], step: int) -> Counter[int]:
    """Sampled tokens of what is not masked, by the steps between their weights and those that step `step` moves."""
    lags: Counter[int] = Counter()
    for result in results:
        if result.masked:
            continue
        for part in result.parts:
            for segment in part.segments:
                if segment.kind is SegmentKind.SAMPLED and segment.weight_version is not None:
                    lags[step - 1 - steps_of(segment.weight_version)] += len(segment.ids)
    return lags


class StreamFigures:
    """`begin` when rollouts begin, then `taken` for each step."""

    def __init__(self, max_staleness: int) -> None:
        self._bound = max_staleness
        self._mark = _Mark(0.0, 0.0, 0)

    def begin(self, *, now: float, engine_busy_s: float) -> None:
        """The first weights are in the engine."""
        self._mark = _Mark(now, engine_busy_s, 0)

    def taken(
        self,
        step: int,
        groups: Sequence[TakenGroup],
        results: Sequence[TrajectoryResult],
        ledger: LedgerStatistics,
        *,
        waited_s: float,
        now: float,
        engine_busy_s: float,
    ) -> dict[str, float]:
        """Of step `step`, whose trainer has waited so long for it. `engine_busy_s` is the engine's own figure."""
        before, self._mark = self._mark, _Mark(now, engine_busy_s, ledger.lost)
        spent = max(now - before.at, 1e-9)
        ages = [group.staleness for group in groups]
        found = {
            "async/staleness_mean": sum(ages) / len(ages),
            "async/staleness_max": float(max(ages)),
            "async/staleness_min": float(min(ages)),
            "async/late": float(sum(age > self._bound for age in ages)),
            "async/running": float(ledger.running),
            "async/waiting": float(ledger.waiting),
            "async/lost": float(ledger.lost - before.lost),
            "async/trajectories_per_min": 60 * len(results) / spent,
            "async/learner_waited": min(1.0, waited_s / spent),
            "async/engine_idle": max(0.0, 1 - (engine_busy_s - before.engine_busy_s) / spent),
            "time/rollouts_s": waited_s,
        }
        return found | self._lag_shares(token_lags(results, step))

    def _lag_shares(self, lags: Counter[int]) -> dict[str, float]:
        total = max(1, lags.total())
        shares = {f"async/lag_{lag}": lags[lag] / total for lag in range(self._bound + 1)}
        return shares | {"async/lag_more": sum(count for lag, count in lags.items() if lag > self._bound) / total}
