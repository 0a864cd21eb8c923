"""/run_jupyter: cells in one interpreter, as one program with one lease, in a box that is not kept.

Invariants: a cell that raises does not stop the next; what was done is there however the interpreter ends; what is kept
of all cells together is bounded, and cut as each cell ends.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from executor_service.gateway.replies import Json, reply_of, run_result
from executor_service.gateway.requests import FIELD_NAMES, GRACE_S, Budget, fetched, input_files, memory_bytes
from executor_service.gateway.schemas import RunJupyterRequest
from executor_service.model import Cause, Display, ExecutionResult, Limits, Outcome, Output
from executor_service.runs.backends import Execution
from executor_service.sessions.cell_run import CellEnd, CellRun, facts_of
from executor_service.sessions.displayed import DisplayedPrograms
from executor_service.sessions.interpreters import InterpreterTree
from executor_service.v1 import executor_pb2 as pb
from executor_service.wire.validation import MAX_CODE
from fairbox.clock import MonotonicClock

JUPYTER_FIELD_NAMES = {**FIELD_NAMES, "limits.wall_time_s": "total_timeout"}
"""Fields of ExecuteCodeRequest -> fields of RunJupyterRequest, where they differ."""
_INTERRUPT_S = 5.0
"""A cell that is interrupted has so long to end before the interpreter is killed."""
_ALL_BYTES = 12 << 20
"""Kept of all cells together; what comes then is cut and marked `truncated`."""
_JSON_BYTES = 256 << 10
"""Displayed by all cells together that is read as JSON: it is a program's, and reading it holds the event loop."""
_PRELUDE = "__import__('sys').stdout.reconfigure(line_buffering=True)"
"""Cell 0, which is in no reply: what was printed is there when the interpreter is killed in the middle of a cell."""
_IN_BASE64 = ("image/png", "image/jpeg", "application/pdf")


def budget_of_cells(request: RunJupyterRequest, longest_queue_s: float) -> Budget:
    return Budget(longest_queue_s, longest_queue_s + max(request.total_timeout, 0.0) + GRACE_S)


def execution_of_cells(request: RunJupyterRequest) -> pb.ExecuteCodeRequest:
    """Raises Unacceptable for files that can't be. Its code is that of all cells, from which its profile is chosen."""
    code = "\n".join(request.cells).encode()[:MAX_CODE]
    return pb.ExecuteCodeRequest(
        code=code.decode("utf-8", "ignore") or "\n",
        language="python",
        files=input_files(request.files),
        return_paths=fetched(request.fetch_files)[0],
        env={"MPLBACKEND": "Agg"},  # there is no screen; what is drawn is shown at the end of the cell
        limits=pb.Limits(
            wall_time_s=request.total_timeout,
            memory_bytes=memory_bytes(request.memory_limit_mb),
        ),
    )


class Notebook:
    """The `Backend` for one request. `cells` is what became of each, as the reply says it."""

    def __init__(self, boxed: DisplayedPrograms, request: RunJupyterRequest) -> None:
        self._boxed = boxed
        self._request = request
        self._left = _ALL_BYTES
        self._json_left = _JSON_BYTES
        self.cells: list[Json] = []

    async def perform(self, attempt: Execution) -> ExecutionResult:
        return await self._boxed.perform_cells(attempt, lambda tree: self._run(attempt, tree))

    async def _run(self, attempt: Execution, tree: InterpreterTree) -> dict[str, Any]:
        """Fields of the result: those of the end of the interpreter, or of a program that ended well."""
        whole = attempt.request.limits
        wall_s, cpu_s, peak_bytes = 0.0, 0.0, 0
        tree.begin(tree.root, whole)
        for number, source in enumerate([_PRELUDE, *self._request.cells]):
            own = 0 < self._request.cell_timeout < whole.wall_time_s - wall_s
            limits = replace(whole, wall_time_s=self._request.cell_timeout if own else whole.wall_time_s - wall_s)
            end = await self._cell(attempt, tree, source, number, limits, interrupt=own)
            wall_s += end.wall_s
            if end.answer is None:
                facts = facts_of(end, limits if own else whole, kept=False)
                reason = facts["message"] or "The interpreter ended in this cell."
                self._keep(end, {"ename": facts["outcome"].value, "evalue": reason, "traceback": [reason]})
                return {**facts, "stdout": Output(), "stderr": Output(), "wall_time_s": wall_s}
            # What it claims: it has not used more than it may.
            cpu_s = min(cpu_s + end.answer.cpu_s, whole.cpu_time_s)
            peak_bytes = max(peak_bytes, end.answer.peak_bytes)
            if number:
                self._keep(end, self._late(end.answer.raised) if end.timed_out else end.answer.raised)
        tree.rest(tree.root)
        facts = {"outcome": Outcome.FINISHED, "cause": Cause.POLICY, "message": "", "wall_time_s": wall_s}
        return {**facts, "cpu_time_s": cpu_s, "peak_memory_bytes": peak_bytes}

    async def _cell(
        self, attempt: Execution, tree: InterpreterTree, source: str, number: int, limits: Limits, *, interrupt: bool
    ) -> CellEnd:
        shows = not source.rstrip().endswith(";")
        request = replace(attempt.request, code=source.encode(), display=shows, files=(), return_paths=())
        grace_s, clock = _INTERRUPT_S if interrupt else 0.0, MonotonicClock()
        run = CellRun(tree, tree.root, request, limits, cell=number, grace_s=grace_s, clock=clock, of_many=True)
        async with run:
            return await run.end(f"<cell {number}>")

    def _late(self, raised: Mapping[str, Any] | None) -> Json:
        """The error of a cell that was interrupted, in place of the KeyboardInterrupt that ended it."""
        why = f"the cell ran for longer than {self._request.cell_timeout:g} s (cell_timeout)"
        lines = list(raised["traceback"]) if raised else []
        if lines and lines[-1].startswith("KeyboardInterrupt"):
            lines.pop()
        return {"ename": "CellTimeout", "evalue": why, "traceback": [*lines, f"CellTimeout: {why}"]}

    def _keep(self, end: CellEnd, raised: Mapping[str, Any] | None) -> None:
        """Appends what the reply says of a cell, cut if all cells together would be too large."""
        displays = end.answer.displays if end.answer else ()
        truncated = end.stdout.truncated or end.stderr.truncated or any(display.truncated for display in displays)
        cell: Json = {"stdout": "", "stderr": "", "display": [], "error": []}
        if raised:
            cell["error"] = [{"ename": raised["ename"], "evalue": "", "traceback": []}]
        for part, size, content in (
            ("error", len(str(raised)) if raised else 0, lambda: [raised] if raised else []),
            ("stdout", len(end.stdout.data), lambda: end.stdout.text),
            ("stderr", len(end.stderr.data), lambda: end.stderr.text),
            ("display", _size(displays), lambda: [self._bundle(display) for display in displays]),
        ):
            if size <= self._left:
                self._left -= size
                cell[part] = content()
            else:
                truncated = True
        self.cells.append({**cell, "truncated": truncated})

    def _bundle(self, display: Display) -> Json:
        """MIME type -> content; plain text comes last."""
        kinds = sorted(display.data, key=lambda kind: kind == "text/plain")
        return {kind: self._content(kind, display.data[kind]) for kind in kinds}

    def _content(self, kind: str, data: bytes) -> Any:
        """Text, base64 for pictures and what is no text, plain data for JSON, as far as there is not too much of it."""
        if not (text := _text(kind, data)):
            return base64.b64encode(data).decode()
        if not kind.endswith("json") or len(data) > self._json_left:
            return text
        self._json_left -= len(data)
        try:
            return json.loads(text, parse_constant=_refused)
        except (ValueError, RecursionError):  # it is not what its type says
            return text


def _size(displays: Sequence[Display]) -> int:
    return sum(len(data) for display in displays for data in display.data.values())


def _text(kind: str, data: bytes) -> str:
    """Text; empty for pictures and for what is none."""
    try:
        return "" if kind in _IN_BASE64 else data.decode("utf-8", "replace" if kind.startswith("text/") else "strict")
    except UnicodeDecodeError:
        return ""


def _refused(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def run_jupyter_reply(result: ExecutionResult, request: RunJupyterRequest, cells: list[Json]) -> Json:
    """Success if every cell was run, whether it raised or not; else what was done by then is there all the same."""
    done = result.outcome is Outcome.FINISHED and len(cells) == len(request.cells)
    return reply_of(result, request.fetch_files, success=done, driver=run_result(result), cells=cells)
