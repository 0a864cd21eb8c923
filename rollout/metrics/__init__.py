"""Metrics: figures of a trajectory, and of all trajectories of a step."""

from rollout.metrics.batch import RolloutMetrics, percentile
from rollout.metrics.trajectory import (
    PromptCount,
    calls_of_turns,
    efficiency_metrics,
    files_read,
    first_hit,
    search_metrics,
    trajectory_metrics,
)

__all__ = [
    "PromptCount",
    "RolloutMetrics",
    "calls_of_turns",
    "efficiency_metrics",
    "files_read",
    "first_hit",
    "percentile",
    "search_metrics",
    "trajectory_metrics",
]
