"""Results of one verification's cases, as they become known."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from executor_service.grading.model import CaseResult
from executor_service.grading.rules import without_compiler_output

CaseFollower = Callable[["CaseLog"], None]
"""Given the log when it joins, and again with each case."""


class CaseLog:
    """Grows until the verification ends; whoever joins later finds all from the beginning."""

    def __init__(self) -> None:
        self.results: list[CaseResult] = []
        """In the order in which they became known."""
        self.followers: list[CaseFollower] = []

    def add(self, results: Sequence[CaseResult]) -> None:
        self.results += map(without_compiler_output, results)
        for follower in self.followers:
            follower(self)
