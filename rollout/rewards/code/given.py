"""Arguments that the reward functions of programs share, as a configuration gives them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict

from executor_service import Limits
from rollout.rewards.code.grading import Grading

__all__ = ["LimitArguments", "SampleArguments", "TestArguments", "grading_of"]

_WALL_TIME_S = 10.0


class LimitArguments(TypedDict, total=False):
    """How each case is limited, and where the program is found."""

    wall_time_s: float
    """10 by default."""
    memory_mb: int
    """0, the default: the server's."""
    processes: int
    """0, the default: the server's."""
    whole_text: bool
    """An answer without a fence is a program itself."""


class TestArguments(LimitArguments, total=False):
    """And what several cases are worth, as in `Grading`; all false by default."""

    continuous: bool
    stop_on_failure: bool
    case_parts: bool


class SampleArguments(TestArguments, total=False):
    """And which of the cases are run, as in `Grading`; 0, the default of both: all."""

    max_cases: int
    seed: int


def grading_of(given: Mapping[str, Any]) -> Grading:
    """Of any of these arguments; what was not given is as `Grading` has it."""
    limits = Limits(
        wall_time_s=given.get("wall_time_s", _WALL_TIME_S),
        memory_bytes=given.get("memory_mb", 0) << 20,
        processes=given.get("processes", 0),
    )
    return Grading(
        continuous=given.get("continuous", False),
        stop_on_failure=given.get("stop_on_failure", False),
        max_cases=given.get("max_cases", 0),
        seed=given.get("seed", 0),
        case_parts=given.get("case_parts", False),
        limits=limits,
    )
