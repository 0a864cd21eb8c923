"""The figures of a training run for Prometheus while it goes on: `fairbox_training_*`. docs/operations.md lists them.

Everything is read from `Trainer.statistics()`. Labels are of closed sets and of the names in `metrics.jsonl`.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from rollout.training.trainer import TrainerPhase, TrainerStatistics

__all__ = ["trainer_metrics"]

_PREFIX = "fairbox_training_"


def trainer_metrics(now: TrainerStatistics) -> Iterator[Metric]:
    """Where a run is, and what its last step said."""
    yield _gauge("step", "Steps that are done.", now.step)
    yield _gauge("steps", "Steps of the whole run.", now.steps)
    yield _gauge("saved_step", "Steps that the newest checkpoint has; 0: there is none.", now.saved)
    phases = GaugeMetricFamily(_PREFIX + "phase", "1 for what the trainer is doing.", labels=["phase"])
    for phase in TrainerPhase:
        phases.add_metric([phase.value], float(phase is now.phase))
    yield phases
    groups = GaugeMetricFamily(_PREFIX + "groups", "Groups that no step was trained on yet.", labels=["state"])
    groups.add_metric(["running"], now.rollouts.running)
    groups.add_metric(["waiting"], now.rollouts.waiting)
    yield groups
    yield _gauge("trajectories", "Trajectories that are played or scored.", now.rollouts.trajectories)
    yield _counter("lost_groups", "Groups that the service failed, all of their trajectories.", now.rollouts.lost)
    figures = GaugeMetricFamily(_PREFIX + "figure", "Of the last step, as in metrics.jsonl.", labels=["name"])
    for name, value in sorted(now.figures.items()):
        figures.add_metric([name], value)
    yield figures


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(_PREFIX + name, text, value)


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(_PREFIX + name, text, value)
