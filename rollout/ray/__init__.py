"""Rollouts spread over a Ray cluster. Needs the extra `ray`; ray itself is imported where it is used."""

from rollout.ray.actor import LoopFactory, LoopFacts
from rollout.ray.loops import RayLoops
from rollout.ray.spread import RaySpread
from rollout.ray.workers import WorkersStatistics

__all__ = ["LoopFactory", "LoopFacts", "RayLoops", "RaySpread", "WorkersStatistics"]
