"""Which pods to start and which to end, so that a workload becomes what it should be. Pure: facts in, decisions out.

Invariants of a RollingUpdate: never more than `replicas + maxSurge` pods that are not ending, and none that serves is
ended where fewer than `replicas - maxUnavailable` would serve. Of Recreate: no new pod while an old one is there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tests.k8s.pods.objects import Workload
from tests.k8s.pods.quantities import share

__all__ = ["Decision", "PodFacts", "decide"]


@dataclass(frozen=True, slots=True)
class PodFacts:
    """A pod of a workload at one instant."""

    name: str
    revision: str
    available: bool
    """Ready for `minReadySeconds`."""
    ending: bool
    finished: bool = False
    """Its program ended with 0 and is not started again."""


@dataclass(frozen=True, slots=True)
class Decision:
    """How many pods of the present revision to start, and which to end."""

    start: int = 0
    end: tuple[str, ...] = ()


def decide(workload: Workload, pods: Sequence[PodFacts]) -> Decision:
    """What to do now. Called again whenever something changed."""
    if workload.lacking():
        return Decision()
    if workload.kind == "Job":
        return Decision(start=max(0, workload.replicas - len(pods)))
    living = [pod for pod in pods if not pod.ending]
    old = [pod for pod in living if pod.revision != workload.revision]
    new = [pod for pod in living if pod.revision == workload.revision]
    strategy = workload.spec.get("strategy") or {}
    if strategy.get("type") == "Recreate" or workload.kind == "StatefulSet":
        return _recreate(workload, pods, old, new)
    rolling = strategy.get("rollingUpdate") or {}
    surge = share(rolling.get("maxSurge", "25%"), workload.replicas, up=True)
    unavailable = share(rolling.get("maxUnavailable", "25%"), workload.replicas, up=False)
    start = max(0, min(workload.replicas - len(new), workload.replicas + surge - len(living)))
    spare = sum(pod.available for pod in living) - (workload.replicas - unavailable)
    broken = [pod.name for pod in old if not pod.available]
    serving = [pod.name for pod in old if pod.available]
    surplus = [pod.name for pod in sorted(new, key=lambda pod: pod.available)][: max(0, len(new) - workload.replicas)]
    return Decision(start, (*broken, *serving[: max(0, spare)], *surplus))


def _recreate(
    workload: Workload, pods: Sequence[PodFacts], old: Sequence[PodFacts], new: Sequence[PodFacts]
) -> Decision:
    if any(pod.revision != workload.revision for pod in pods):
        return Decision(end=tuple(pod.name for pod in old))
    surplus = len(new) - workload.replicas
    return Decision(
        # A pod that is ending still counts: its successor must not overlap with it.
        start=max(0, workload.replicas - len(pods)),
        end=tuple(pod.name for pod in new[:surplus]) if surplus > 0 else (),
    )
