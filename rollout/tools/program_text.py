"""What became of a program, as text for the model and as an outcome. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from executor_service import ExecutionResult, Outcome, Output
from rollout.tools.base import ToolOutcome
from rollout.tools.text import NO_OUTPUT, cut_end, cut_middle

__all__ = ["ProgramText", "describe"]

_OUTCOMES = {
    Outcome.FINISHED: ToolOutcome.OK,
    Outcome.NONZERO_EXIT: ToolOutcome.PROGRAM_ERROR,
    Outcome.COMPILE_ERROR: ToolOutcome.PROGRAM_ERROR,
    Outcome.SIGNALED: ToolOutcome.PROGRAM_ERROR,
    Outcome.TIME_LIMIT: ToolOutcome.TIME_LIMIT,
    Outcome.CPU_LIMIT: ToolOutcome.TIME_LIMIT,
    Outcome.MEMORY_LIMIT: ToolOutcome.RESOURCE_LIMIT,
    Outcome.PROCESS_LIMIT: ToolOutcome.RESOURCE_LIMIT,
    Outcome.OUTPUT_LIMIT: ToolOutcome.RESOURCE_LIMIT,
    Outcome.SANDBOX_ERROR: ToolOutcome.INFRA,
    Outcome.CANCELLED: ToolOutcome.INFRA,
}


@dataclass(frozen=True, slots=True)
class ProgramText:
    """An answer for the model."""

    text: str
    outcome: ToolOutcome
    truncated: bool
    total_bytes: int
    """Of standard output and, where it is shown, standard error."""


def describe(result: ExecutionResult, *, max_chars: int) -> ProgramText:
    """Standard output; after a failure also the compiler's words or the end of standard error, and what happened. Never
    empty.

    Each of the streams is shown in at most `max_chars` characters; a cut is marked in the text.
    """
    outcome = _OUTCOMES[result.outcome]
    output, cut = cut_middle(result.stdout.text, max_chars, result.stdout.total_bytes)
    if result.stdout.truncated and not cut:
        output, cut = f"{output}\n[... cut: {result.stdout.total_bytes} bytes in all ...]", True
    parts, total = [output.rstrip("\n")], result.stdout.total_bytes
    if outcome is not ToolOutcome.OK:
        for said in _compiler(result):
            errors, errors_cut = cut_middle(said.text.strip("\n"), max_chars, said.total_bytes)
            parts.append(errors)
            cut, total = cut or errors_cut or said.truncated, total + said.total_bytes
        errors, errors_cut = cut_end(result.stderr.text.strip("\n"), max_chars)
        parts += [errors, _failure(result)]
        cut, total = cut or errors_cut or result.stderr.truncated, total + result.stderr.total_bytes
    text = "\n".join(part for part in parts if part)
    return ProgramText(text or NO_OUTPUT, outcome, cut, total)


def _compiler(result: ExecutionResult) -> tuple[Output, ...]:
    """What the compiler said where that is why the program did not run. Its first error matters more than its last."""
    if result.outcome is not Outcome.COMPILE_ERROR or result.compilation is None:
        return ()
    return (result.compilation.stdout, result.compilation.stderr)


def _failure(result: ExecutionResult) -> str:
    """One line on what happened, where standard error does not say it already."""
    if result.outcome is Outcome.NONZERO_EXIT:
        return "" if result.stderr.data else f"[exit code {result.exit_code}]"
    if result.outcome is Outcome.SIGNALED:
        return f"[ended by signal {result.signal}]"
    return f"[{result.message or result.outcome.lower().replace('_', ' ')}]"
