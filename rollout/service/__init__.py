"""The rollout tier as a service (`python -m rollout`): trainers submit trajectories, and take each as it ends."""

from rollout.service.client import (
    RolloutClient,
    RolloutServiceError,
    RolloutServiceUnavailable,
    RolloutTask,
    StreamedTrajectory,
    SubmissionRefused,
    TrajectoryStream,
)
from rollout.service.requests import problem_digest

__all__ = [
    "RolloutClient",
    "RolloutServiceError",
    "RolloutServiceUnavailable",
    "RolloutTask",
    "StreamedTrajectory",
    "SubmissionRefused",
    "TrajectoryStream",
    "problem_digest",
]
