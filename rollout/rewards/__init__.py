"""Rewards: pure functions of what a trajectory said and what was right."""

from rollout.rewards.base import Reward
from rollout.rewards.gsm8k import extract_answer, gsm8k_reward, parse_number

__all__ = ["Reward", "extract_answer", "gsm8k_reward", "parse_number"]
