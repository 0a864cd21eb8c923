"""What a run amounts to, added up trajectory by trajectory. Pure.

Means see the mask: a masked trajectory has no score and no part in any mean of scores.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping

from executor_service import Cause
from rollout.loop.limits import StopReason
from rollout.loop.results import TrajectoryResult
from rollout.metrics import RolloutMetrics
from rollout.tools.base import ToolOutcome

__all__ = ["RunSummary"]


class RunSummary:
    """`add` each result; everything else is read. `known_code` holds the programs of the worked examples."""

    def __init__(self, known_code: Collection[str] = ()) -> None:
        self._known_code = {code.strip() for code in known_code}
        self.trajectories = 0
        self.masked = 0
        self.retried = 0
        """Trajectories that took more than one attempt."""
        self.own_code = 0
        """Trajectories in which code that is not a worked example's really ran."""
        self.score_sum = 0.0
        self.unscored = 0
        """Of the masked ones, those that were played and nothing could score."""
        self._parts: dict[str, tuple[float, int]] = {}
        """Part of the rewards -> its sum, and how many had it."""
        self.turns = 0
        self.prompt_tokens = 0
        self.sampled_tokens = 0
        self.tool_tokens = 0
        self.stop_reasons: Counter[StopReason] = Counter()
        self.causes: Counter[Cause] = Counter()
        self.tool_outcomes: Counter[ToolOutcome] = Counter()
        self.queue_s = 0.0
        self.engine_s = 0.0
        self.tool_wait_s = 0.0
        self.tool_run_s = 0.0
        self.scoring_s = 0.0
        self.metrics = RolloutMetrics()
        """What trainers log of the same trajectories."""

    @property
    def scored(self) -> int:
        """Trajectories with a reward."""
        return self.trajectories - self.masked

    @property
    def mean_score(self) -> float | None:
        """None when nothing was scored."""
        return self.score_sum / self.scored if self.scored else None

    @property
    def mean_parts(self) -> dict[str, float]:
        """Part of the rewards -> its mean over the trajectories that have it."""
        return {name: total / count for name, (total, count) in self._parts.items()}

    def add(self, result: TrajectoryResult, metrics: Mapping[str, float] | None = None) -> None:
        """Counts one trajectory. `metrics` are its own figures."""
        self.metrics.add(result, metrics)
        self.trajectories += 1
        self.masked += result.masked
        self.retried += result.attempts > 1
        self.own_code += any(self._ran_own_code(result))
        self.unscored += result.unscored
        if result.reward is not None:
            self.score_sum += result.reward.value
            for name, value in result.reward.parts.items():
                total, count = self._parts.get(name, (0.0, 0))
                self._parts[name] = (total + value, count + 1)
        self.turns += result.turns
        sampled = sum(result.trajectory.response_mask)
        self.prompt_tokens += len(result.trajectory.prompt_ids)
        self.sampled_tokens += sampled
        self.tool_tokens += len(result.trajectory.response_ids) - sampled
        self.stop_reasons[result.stop_reason] += 1
        self.causes[result.cause] += 1
        self.tool_outcomes.update(call.outcome for call in result.tool_calls)
        self.queue_s += result.times.queue_s
        self.engine_s += result.times.engine_s
        self.tool_wait_s += result.times.tool_wait_s
        self.tool_run_s += result.times.tool_run_s
        self.scoring_s += result.times.score_s

    def _ran_own_code(self, result: TrajectoryResult) -> list[bool]:
        codes = [(call.arguments or {}).get("code") for call in result.tool_calls if call.outcome.ran]
        return [isinstance(code, str) and code.strip() not in self._known_code for code in codes]
