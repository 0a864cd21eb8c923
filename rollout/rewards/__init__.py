"""Rewards: functions of what a trajectory said and what was right, registered by their names."""

from rollout.rewards.base import NotScored, Reward, RewardServices, Sample
from rollout.rewards.gsm8k import extract_answer, gsm8k_reward, parse_number
from rollout.rewards.registry import find_reward, reward, reward_names

__all__ = [
    "NotScored",
    "Reward",
    "RewardServices",
    "Sample",
    "extract_answer",
    "find_reward",
    "gsm8k_reward",
    "parse_number",
    "reward",
    "reward_names",
]
