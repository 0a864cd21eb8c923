"""The life of a trajectory: its state machine, its limits, the loop that plays it and the runner of many."""

from rollout.loop.agent_loop import AgentLoop
from rollout.loop.groups import GroupEnded, GroupScheduler, Schedule
from rollout.loop.limits import Limits, StopReason, Usage
from rollout.loop.results import BranchPoint, PhaseTimes, ToolCallRecord, TrajectoryResult, TurnRecord
from rollout.loop.run import TrajectoryRun
from rollout.loop.runner import RolloutRunner, RunnerStatistics
from rollout.loop.state import CallTools, Finish, Generate, RequestState, TrajectoryMachine
from rollout.loop.task import Task

__all__ = [
    "AgentLoop",
    "BranchPoint",
    "CallTools",
    "Finish",
    "Generate",
    "GroupEnded",
    "GroupScheduler",
    "Limits",
    "PhaseTimes",
    "RequestState",
    "RolloutRunner",
    "RunnerStatistics",
    "Schedule",
    "StopReason",
    "Task",
    "ToolCallRecord",
    "TrajectoryMachine",
    "TrajectoryResult",
    "TrajectoryRun",
    "TurnRecord",
    "Usage",
]
