"""The rollout tier as a service (`python -m rollout`): trainers submit trajectories, and take each as it ends."""

from rollout.service.client import RolloutClient, RolloutTask
from rollout.service.replica import RolloutServiceError, RolloutServiceUnavailable, SubmissionRefused
from rollout.service.requests import problem_digest
from rollout.service.streaming import StreamedTrajectory, TrajectoryStream

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
