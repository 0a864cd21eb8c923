"""Says of an environment's tasks whether they are fit to train on (`fairbox check-env`)."""

from rollout.env_check.cheats import Cheat, cheats_for
from rollout.env_check.check import CheckPlan, EnvironmentCheck
from rollout.env_check.findings import Finding, FindingKind, TaskReport

__all__ = ["Cheat", "CheckPlan", "EnvironmentCheck", "Finding", "FindingKind", "TaskReport", "cheats_for"]
