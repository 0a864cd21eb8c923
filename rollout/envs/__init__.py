"""Environments: tasks out of data, rewards out of trajectories."""

from rollout.envs.base import Environment
from rollout.envs.gsm8k import Gsm8kEnvironment, WorkedExample

__all__ = ["Environment", "Gsm8kEnvironment", "WorkedExample"]
