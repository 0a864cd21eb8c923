"""Figures of a batch, as trainers log them: a flat mapping of names to floats. Pure.

Invariant: a trajectory that is masked is counted as such and is in no mean; a figure that nothing was measured for is
left out, except for the shares of stop reasons and the counts, so that a plot has no false zeros.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence

from executor_service import Cause
from rollout.loop.limits import StopReason
from rollout.loop.results import TrajectoryResult
from rollout.tokens.turn_spans import turn_spans
from rollout.tools.base import ToolOutcome

__all__ = ["RolloutMetrics", "percentile"]

_TIMED_OUT = (StopReason.WALL_TIME, StopReason.TURN_TIME)
_NO_TOOL = (ToolOutcome.UNKNOWN_TOOL, ToolOutcome.MALFORMED)


class RolloutMetrics:
    """`add` each trajectory of a step, then `flat()`. It holds some floats of each, and neither tokens nor text."""

    def __init__(self) -> None:
        self._masked = self._infra = self._timeouts = self._retried = 0
        self._stops: dict[StopReason, int] = dict.fromkeys(StopReason, 0)
        self._tokens: list[int] = []
        self._turn_tokens: list[int] = []
        self._rewards: list[float | None] = []
        """Beside `_tokens`; None of one that nobody has scored yet."""
        self._means: defaultdict[str, list[float]] = defaultdict(list)
        self._times: defaultdict[str, list[float]] = defaultdict(list)
        self._tools: defaultdict[str, _ToolFigures] = defaultdict(_ToolFigures)

    def add(self, result: TrajectoryResult, metrics: Mapping[str, float] | None = None) -> None:
        """`metrics` are the trajectory's own (`trajectory_metrics`)."""
        self._retried += result.attempts > 1
        if result.masked:
            self._masked += 1
            self._infra += result.cause is Cause.INFRA
            return
        self._timeouts += result.stop_reason in _TIMED_OUT
        self._stops[result.stop_reason] += 1
        self._tokens.append(sum(len(part.response_ids) for part in result.parts))
        self._turn_tokens += (span.end - span.start for part in result.parts for span in turn_spans(part))
        self._rewards.append(None if result.reward is None else result.reward.value)
        if result.reward is not None:
            self._means["reward/avg_raw_reward"].append(result.reward.value)
            self._add_means("reward/", result.reward.parts)
        self._add_means("metrics/", metrics or {})
        self._add_times(result)
        for call in result.tool_calls:
            known = call.name and call.outcome not in _NO_TOOL  # a model may make up any number of names
            self._tools[call.name if known else "unknown"].add(call.outcome, call.run_s)

    def _add_means(self, prefix: str, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._means[prefix + name].append(value)

    def _add_times(self, result: TrajectoryResult) -> None:
        times = result.times
        # Parallel calls add up in the phases, which may so be longer than the wall: nothing is left for others then.
        other = max(0.0, times.total_s - times.queue_s - times.engine_s - times.tool_wait_s - times.tool_run_s)
        for name, seconds in (
            ("total", times.total_s),
            ("engine_queue", times.queue_s),
            ("engine", times.engine_s),
            ("tool_wait", times.tool_wait_s),
            ("tool_run", times.tool_run_s),
            ("other", other),
            ("score", times.score_s),
        ):
            self._times[name].append(seconds)

    def flat(self) -> dict[str, float]:
        """Names and values; docs/localization.md says what each means."""
        count = len(self._tokens)
        figures: dict[str, float] = {
            "generate/num_trajectories": count + self._masked,
            "generate/num_masked": self._masked,
            "generate/num_errors": self._infra,
            "generate/num_timeouts": self._timeouts,
            "generate/num_retried": self._retried,
            **{f"stop/{reason}": number / count if count else 0.0 for reason, number in self._stops.items()},
        }
        if count:
            figures |= _spread("generate/{}_num_tokens", self._tokens) | self._tokens_by_reward()
            figures |= {name: statistics.fmean(values) for name, values in self._means.items()}
        if self._turn_tokens:
            figures |= _spread("generate/{}_tokens_per_turn", self._turn_tokens)
        for phase, seconds in self._times.items():
            figures[f"time/{phase}_s/mean"] = statistics.fmean(seconds)
            figures[f"time/{phase}_s/p90"] = percentile(seconds, 0.9)
            figures[f"time/{phase}_s/max"] = max(seconds)
        for name, tool in self._tools.items():
            figures |= {f"tool/{name}/{what}": value for what, value in tool.flat().items()}
        return {name: float(value) for name, value in figures.items()}

    def _tokens_by_reward(self) -> dict[str, float]:
        """As SkyRL has them: of rewards above 0 and of rewards of 0; a negative one is in neither; 0 of none."""
        pairs = [
            (tokens, reward) for tokens, reward in zip(self._tokens, self._rewards, strict=True) if reward is not None
        ]
        above = [tokens for tokens, reward in pairs if reward > 0]
        zero = [tokens for tokens, reward in pairs if reward == 0]
        return {
            "generate/avg_tokens_non_zero_rewards": statistics.fmean(above) if above else 0.0,
            "generate/avg_tokens_zero_rewards": statistics.fmean(zero) if zero else 0.0,
        }


class _ToolFigures:
    """Of the calls to one tool."""

    def __init__(self) -> None:
        self._calls = self._ok = self._ran = 0
        self._run_s = 0.0

    def add(self, outcome: ToolOutcome, run_s: float) -> None:
        self._calls += 1
        self._ok += outcome is ToolOutcome.OK
        self._ran += outcome.ran
        self._run_s += run_s if outcome.ran else 0.0

    def flat(self) -> dict[str, float]:
        mean = {"mean_run_s": self._run_s / self._ran} if self._ran else {}
        return {"calls": float(self._calls), "ok_rate": self._ok / self._calls} | mean


def percentile(values: Sequence[float], share: float) -> float:
    """Linear between the two nearest values in order, numpy's default. `share` is from 0 to 1, `values` not empty."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def _spread(name: str, values: Sequence[float]) -> dict[str, float]:
    """Smallest, largest, mean and standard deviation of the population; `{}` in the name stands for which."""
    figures = {
        "min": min(values),
        "max": max(values),
        "avg": statistics.fmean(values),
        "std": statistics.pstdev(values),
    }
    return {name.format(which): value for which, value in figures.items()}
