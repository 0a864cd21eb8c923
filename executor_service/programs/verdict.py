"""Names what became of a program, and who could have caused it. Pure.

The rule: POLICY whenever the code could have caused it, timeouts and memory included, so that nothing can be learned
from triggering the mask; INFRA only when it could not.
"""

from __future__ import annotations

import signal

from executor_service.model import Cause, Limits, Outcome
from executor_service.sandbox.report import Killed, Report


def judge(report: Report, limits: Limits, what: str = "program") -> tuple[Outcome, Cause, str]:
    """Outcome, cause, and one sentence for people about `what` (empty where the outcome says all)."""

    def limit(outcome: Outcome, did: str) -> tuple[Outcome, Cause, str]:
        return outcome, Cause.POLICY, f"Killed: the {what} {did}."

    # The kernel's own counts first: whatever a program did after such a denial is its consequence.
    if report.killed is Killed.MEMORY or report.oom_kills:
        return limit(Outcome.MEMORY_LIMIT, f"used more than {limits.memory_bytes} bytes of memory")
    if report.killed is Killed.PROCESSES or report.denied_forks:
        return limit(Outcome.PROCESS_LIMIT, f"had more than {limits.processes} processes and threads at once")
    match report.killed:
        case Killed.WALL:
            return limit(Outcome.TIME_LIMIT, f"ran for longer than {limits.wall_time_s:g} s")
        case Killed.CPU:
            return limit(Outcome.CPU_LIMIT, f"used more than {limits.cpu_time_s:g} s of CPU time")
        case Killed.OUTPUT:
            return limit(Outcome.OUTPUT_LIMIT, f"wrote far more than {limits.output_bytes} bytes")
        case Killed.LAPSED:
            message = f"Killed: the limiter no longer vouches for the lease that the {what} ran under."
            return Outcome.CANCELLED, Cause.INFRA, message
    if report.signal in (signal.SIGKILL, signal.SIGXCPU) and report.cpu_s >= limits.cpu_time_s:
        return limit(Outcome.CPU_LIMIT, f"used more than {limits.cpu_time_s:g} s of CPU time")
    if report.outside_kills:
        message = f"The kernel killed the {what}, because this server or its machine had no memory left."
        return Outcome.SANDBOX_ERROR, Cause.INFRA, message
    if report.signal:
        return Outcome.SIGNALED, Cause.POLICY, f"Ended by signal {_signal_name(report.signal)}."
    return (Outcome.NONZERO_EXIT if report.code else Outcome.FINISHED), Cause.POLICY, ""


def _signal_name(number: int) -> str:
    try:
        return f"{number} ({signal.Signals(number).name})"
    except ValueError:
        return str(number)
