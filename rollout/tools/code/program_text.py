"""The result of a program as the answer to a call. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from executor_service import Display, ExecutionResult, Outcome, Output
from rollout.tools.base import ToolOutcome, ToolResponse
from rollout.tools.text import NO_OUTPUT, cut_text, marker

_PLAIN = "text/plain"
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


def describe(
    result: ExecutionResult, *, max_chars: int, show_exit_code: bool = False, show_message: bool = False
) -> ToolResponse:
    """Standard output and displayed values; after a failure also the compiler's words or the end of standard error,
    and what happened. Never empty.

    Each of the streams, and the displayed values together, are shown in at most `max_chars` characters; a cut is marked
    in the text. `show_exit_code`: say an exit code that is not 0 even where standard error says something.
    `show_message`: say what a session says of a program that came to its end, as that its shell is another one now. The
    size of the whole output is that of standard output, displayed values and, if it is shown, standard error.
    """
    outcome = _OUTCOMES[result.outcome]
    output, cut = cut_text(result.stdout.text, max_chars, total_bytes=result.stdout.total_bytes)
    if result.stdout.truncated and not cut:
        output, cut = f"{output}\n{marker(result.stdout.total_bytes)}", True
    parts, total = [output.rstrip("\n")], result.stdout.total_bytes
    shown, unshown = _displayed(result.displays)
    if shown:
        size = len(shown.encode("utf-8", "replace"))
        values, values_cut = cut_text(shown, max_chars, total_bytes=size)
        parts.append(values)
        cut, total = cut or values_cut or any(each.truncated for each in result.displays), total + size
    if outcome is not ToolOutcome.OK:
        for said in _compiler(result):
            errors, errors_cut = cut_text(said.text.strip("\n"), max_chars, total_bytes=said.total_bytes)
            parts.append(errors)
            cut, total = cut or errors_cut or said.truncated, total + said.total_bytes
        whole = result.stderr.total_bytes
        errors, errors_cut = cut_text(result.stderr.text.strip("\n"), max_chars, total_bytes=whole, end=True)
        parts += [errors, _failure(result, show_exit_code)]
        cut, total = cut or errors_cut or result.stderr.truncated, total + whole
    if show_message and result.message and result.outcome in (Outcome.FINISHED, Outcome.NONZERO_EXIT):
        parts.append(f"[{result.message}]")
    text = "\n".join(part for part in parts if part)
    return ToolResponse(text or NO_OUTPUT, outcome, cut, total, unshown=unshown)


def _displayed(displays: Sequence[Display]) -> tuple[str, dict[str, int]]:
    """(what the model sees of displayed values, MIME type -> bytes of the forms that it does not see).

    A value is shown by its plain text; one that has none by the names and sizes of its forms, so that the model knows
    that something was displayed.
    """
    lines, unshown = [], dict[str, int]()
    for display in displays:
        rich = {kind: len(content) for kind, content in display.data.items() if kind != _PLAIN}
        for kind, size in rich.items():
            unshown[kind] = unshown.get(kind, 0) + size
        if _PLAIN in display.data:
            lines.append(display.text)
        else:
            lines.append("".join(f"[{kind}, {size} bytes, not shown]" for kind, size in sorted(rich.items())))
    return "\n".join(line for line in lines if line), unshown


def _compiler(result: ExecutionResult) -> tuple[Output, ...]:
    """The compiler's output, if that is why the program did not run. Its first error matters more than its last."""
    if result.outcome is not Outcome.COMPILE_ERROR or result.compilation is None:
        return ()
    return (result.compilation.stdout, result.compilation.stderr)


def _failure(result: ExecutionResult, show_exit_code: bool) -> str:
    """One line on what happened, where standard error does not say it already."""
    if result.outcome is Outcome.NONZERO_EXIT:
        return "" if result.stderr.data and not show_exit_code else f"[exit code {result.exit_code}]"
    if result.outcome is Outcome.SIGNALED:
        return f"[ended by signal {result.signal}]"
    return f"[{result.message or result.outcome.lower().replace('_', ' ')}]"
