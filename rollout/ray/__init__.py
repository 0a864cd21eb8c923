"""Rollouts spread over a Ray cluster. Needs the extra `ray`; ray itself is imported where it is used."""

from rollout.ray.loops import RayLoops

__all__ = ["RayLoops"]
