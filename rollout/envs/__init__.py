"""Environments: tasks out of data, rewards out of trajectories, registered by their names."""

from rollout.envs.base import Environment, EnvironmentSetup
from rollout.envs.checker import AnswerChecker, CheckFailed, Grade, ShellChecker, TaskChecker
from rollout.envs.gsm8k import Gsm8kConfig, Gsm8kEnvironment, PromptStyle
from rollout.envs.gsm8k_prompts import WorkedExample
from rollout.envs.registry import EnvironmentKind, environment, environment_names, find_environment, load_run

__all__ = [
    "AnswerChecker",
    "CheckFailed",
    "Environment",
    "EnvironmentKind",
    "EnvironmentSetup",
    "Grade",
    "Gsm8kConfig",
    "Gsm8kEnvironment",
    "PromptStyle",
    "ShellChecker",
    "TaskChecker",
    "WorkedExample",
    "environment",
    "environment_names",
    "find_environment",
    "load_run",
]
