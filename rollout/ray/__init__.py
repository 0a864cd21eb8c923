"""Rollouts spread over a Ray cluster. Needs the extra `ray`; ray itself is imported where it is used."""

from rollout.ray.loops import LoopFactory, LoopInfo, RayLoops, WorkersStatistics

__all__ = ["LoopFactory", "LoopInfo", "RayLoops", "WorkersStatistics"]
