"""Rollouts spread over a Ray cluster. Needs the extra `ray`; ray itself is imported where it is used."""

from rollout.ray.actor import LoopFactory
from rollout.ray.loops import RayLoops, RaySpread
from rollout.ray.workers import WorkersStatistics

__all__ = ["LoopFactory", "RayLoops", "RaySpread", "WorkersStatistics"]
