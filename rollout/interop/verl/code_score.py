"""verl's `compute_score` functions for code, `sandbox_fusion` and `prime_code`, with their parameters.

They may be called from any thread. They import nothing of verl.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from executor_service import ExecutorClient
from rollout.interop.portal import process_loop
from rollout.rewards import RewardServices
from rollout.rewards.code.verl_codes import verl_score

__all__ = ["prime_code", "sandbox_fusion"]

DEFAULT_TARGET = "127.0.0.1:50051"
CALL_S = 3600.0
"""One call, with all its cases and the time in queues. The executor's client has nearer deadlines."""


def sandbox_fusion(
    executor: str,
    concurrent_semaphore: object,
    memory_limit_mb: int | None,
    completion: str,
    test_cases: str | Mapping[str, Any],
    continuous: bool = False,
    timeout: float = 10,
) -> tuple[float, list[dict[str, Any]]]:
    """As `verl.utils.reward_score.sandbox_fusion.compute_score`; `executor` is `host:port`.

    `concurrent_semaphore` is not used: the limiter limits, in the whole cluster. Raises NotScored where verl's gives 0
    for a failure of the sandbox or of the test cases.
    """
    arguments = {"continuous": continuous, "timeout": float(timeout), "memory_limit_mb": memory_limit_mb or 0}
    return process_loop().call(_score(executor, completion, test_cases, arguments), timeout=CALL_S)


def prime_code(
    completion: str, test_cases: str | Mapping[str, Any], continuous: bool = False, executor: str = DEFAULT_TARGET
) -> tuple[bool | float, list[dict[str, Any]]]:
    """As `verl.utils.reward_score.prime_code.compute_score`: True or False, or with `continuous` a share. A completion
    without a fence is code."""
    arguments = {"continuous": continuous, "whole_text": True}
    score, metadata = process_loop().call(_score(executor, completion, test_cases, arguments), timeout=CALL_S)
    return (score if continuous else score == 1.0), metadata


async def _score(
    executor: str, completion: str, test_cases: str | Mapping[str, Any], arguments: dict[str, Any]
) -> tuple[float, list[dict[str, Any]]]:
    async with ExecutorClient(executor) as client:
        return await verl_score(RewardServices(executor=client), completion, test_cases, **arguments)
