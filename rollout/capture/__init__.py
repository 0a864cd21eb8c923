"""Capture: an OpenAI-compatible endpoint in front of an engine, which records the exact tokens of foreign agents.

A `CaptureGateway` needs aiohttp (extra `gateway`).
"""

from rollout.capture.errors import UnknownTrajectoryError
from rollout.capture.gateway import CaptureGateway, CaptureStatistics
from rollout.capture.record import CapturedBranch, CapturedTrajectory
from rollout.capture.recorder import BranchReason, RecordedTurn, Recorder
from rollout.capture.settings import CaptureSettings

__all__ = [
    "BranchReason",
    "CaptureGateway",
    "CaptureSettings",
    "CaptureStatistics",
    "CapturedBranch",
    "CapturedTrajectory",
    "RecordedTurn",
    "Recorder",
    "UnknownTrajectoryError",
]
