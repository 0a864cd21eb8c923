"""The spans of a run, made of its result: `executor.execution`, and below it queue, compile, set-up, run and collect.

They are laid one behind the other as their times in the result say, which is how a run goes; what is left at the end is
`executor.collect`: reading outputs and files, and judging.
"""

from __future__ import annotations

import time

from executor_service.model import Cause, ExecutionResult, RunRequest
from fairbox import tracing

__all__ = ["record_run"]


def record_run(request: RunRequest, ending: ExecutionResult | Exception, total_s: float, *, name: str) -> None:
    """Records a run that has just ended, below the span of the call that brought it. `name` is this server's."""
    ended_at = time.time()  # once, so that the phases lie within the run to the microsecond
    facts: dict[str, tracing.Value] = {
        "request_id": request.request_id,
        "tenant": request.tenant,
        "session_id": request.session_id,
        "workspace_id": request.workspace_id,
        "language": request.language,
        "served_by": name,
    }
    if isinstance(ending, Exception):
        why = type(ending).__name__
        facts |= {"cause": Cause.INFRA, "refused": why}
        run = tracing.record("executor.execution", facts, seconds=total_s, ended_at=ended_at, why=why)
        tracing.record("executor.queue", seconds=total_s, ended_at=ended_at, parent=run)
        return
    facts |= {
        "outcome": ending.outcome,
        "cause": ending.cause,
        "queue_s": ending.queue_time_s,
        "setup_s": ending.setup_time_s,
        "wall_s": ending.wall_time_s,
        "cpu_s": ending.cpu_time_s,
        "peak_memory_bytes": ending.peak_memory_bytes,
        "profile": ending.profile,
        "isolation": ending.isolation_level,
        "cell": ending.cell,
    }
    why = ending.outcome.value if ending.cause is Cause.INFRA else ""
    run = tracing.record("executor.execution", facts, seconds=total_s, ended_at=ended_at, why=why)
    left_s = total_s
    for phase, seconds in _phases(ending):
        seconds = min(seconds, left_s)
        left_s -= seconds
        tracing.record(f"executor.{phase}", seconds=seconds, ended_at=ended_at - left_s, parent=run)
    tracing.record("executor.collect", seconds=left_s, ended_at=ended_at, parent=run)


def _phases(result: ExecutionResult) -> list[tuple[str, float]]:
    compiled = result.compilation
    phases = [("queue", result.queue_time_s)]
    if compiled is not None and not compiled.cached:
        phases.append(("compile", compiled.wall_time_s))
    return [*phases, ("setup", result.setup_time_s), ("run", result.wall_time_s)]
