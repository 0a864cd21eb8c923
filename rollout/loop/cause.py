"""Who could have caused how a trajectory ended."""

from __future__ import annotations

from enum import StrEnum

__all__ = ["Cause"]


class Cause(StrEnum):
    """Only INFRA is masked. What the model could cause is never INFRA, so nothing is learned from triggering a mask."""

    POLICY = "policy"
    """The model could have caused it. It is scored."""
    TASK = "task"
    """The task's own data. A fault of the data set; it is reported."""
    INFRA = "infra"
    """The service. The trajectory has no reward and its tokens are not trained on."""
