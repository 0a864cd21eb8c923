"""Rewards: functions of what a trajectory said and what was right, registered by their names and composed by files."""

from rollout.rewards.base import NotScored, Reward, RewardFault, RewardServices, Sample
from rollout.rewards.compose import Composition, RewardEntry
from rollout.rewards.file import load_reward, parse_rewards, read_rewards
from rollout.rewards.gsm8k import AnswerMethod, extract_answer, gsm8k_reward, parse_number
from rollout.rewards.registry import find_reward, reward, reward_names

__all__ = [
    "AnswerMethod",
    "Composition",
    "NotScored",
    "Reward",
    "RewardEntry",
    "RewardFault",
    "RewardServices",
    "Sample",
    "extract_answer",
    "find_reward",
    "gsm8k_reward",
    "load_reward",
    "parse_number",
    "parse_rewards",
    "read_rewards",
    "reward",
    "reward_names",
]
