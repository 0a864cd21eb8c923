"""The life of a trajectory: its state machine, its limits, the loop that plays it and the runner of many."""

from rollout.loop.agent_loop import AgentLoop
from rollout.loop.limits import Limits, StopReason, Usage
from rollout.loop.results import PhaseTimes, ToolCallRecord, TrajectoryResult
from rollout.loop.runner import RetryBudget, RolloutRunner, RunnerStatistics
from rollout.loop.state import CallTools, Finish, Generate, RequestState, TrajectoryMachine
from rollout.loop.task import Task

__all__ = [
    "AgentLoop",
    "CallTools",
    "Finish",
    "Generate",
    "Limits",
    "PhaseTimes",
    "RequestState",
    "RetryBudget",
    "RolloutRunner",
    "RunnerStatistics",
    "StopReason",
    "Task",
    "ToolCallRecord",
    "TrajectoryMachine",
    "TrajectoryResult",
    "Usage",
]
