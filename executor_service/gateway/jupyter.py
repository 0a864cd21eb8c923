"""/run_jupyter: cells in one interpreter, as one program with one lease. Pure, but for reading the notebook's source.

What the program leaves in its result files is made by untrusted code: it is read with care and never believed beyond
its own cells.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from executor_service.gateway import notebook
from executor_service.gateway.replies import Json, command_result, files_of
from executor_service.gateway.requests import FIELD_NAMES, GRACE_S, Budget, fetched, input_files, memory_bytes
from executor_service.gateway.schemas import RunJupyterRequest
from executor_service.model import ExecutionResult, FileStatus, Outcome, OutputFile
from executor_service.v1 import executor_pb2 as pb

__all__ = ["JUPYTER_FIELD_NAMES", "budget_of_cells", "execution_of_cells", "run_jupyter_reply"]

JUPYTER_FIELD_NAMES = {**FIELD_NAMES, "limits.wall_time_s": "total_timeout"}
"""Fields of ExecuteCodeRequest -> fields of RunJupyterRequest, where they differ."""
_SOURCE = Path(notebook.__file__).read_text(encoding="utf-8")
_OURS = (notebook.RESULTS, notebook.STDOUT, notebook.STDERR)


def budget_of_cells(request: RunJupyterRequest, longest_queue_s: float) -> Budget:
    return Budget(longest_queue_s, longest_queue_s + max(request.total_timeout, 0.0) + GRACE_S)


def execution_of_cells(request: RunJupyterRequest) -> pb.ExecuteCodeRequest:
    """Raises Unacceptable for files that can't be."""
    cells = json.dumps({"cells": request.cells, "cell_timeout": request.cell_timeout}).encode()
    own = [path for path in fetched(request.fetch_files)[0] if path not in _OURS]
    return pb.ExecuteCodeRequest(
        code=_SOURCE,
        language="python",
        files=[*input_files(request.files), pb.InputFile(path=notebook.CELLS, content=cells)],
        # The results first: what is returned shares a limit.
        return_paths=[*_OURS, *own],
        limits=pb.Limits(
            wall_time_s=request.total_timeout,
            memory_bytes=memory_bytes(request.memory_limit_mb),
        ),
    )


def run_jupyter_reply(result: ExecutionResult, request: RunJupyterRequest) -> Json:
    """Success when every cell was run, whether it raised or not; else what was done by then is there all the same."""
    found = {file.path: file for file in result.files}
    cells = _cells(_text(found, notebook.RESULTS), len(request.cells))
    whole = result.outcome is Outcome.FINISHED and len(cells) == len(request.cells)
    if len(cells) < len(request.cells):
        cells.append(_interrupted(result, _text(found, notebook.STDOUT), _text(found, notebook.STDERR)))
    driver = command_result(
        result.outcome, result.exit_code, result.stdout, result.stderr, result.wall_time_s, message=result.message
    ) | {"cpu_time": result.cpu_time_s, "peak_memory_bytes": result.peak_memory_bytes}
    files, left_out = files_of(result, request.fetch_files, fetched(request.fetch_files)[1])
    return {
        "status": "Success" if whole else "Failed",
        "message": "",
        "driver": driver,
        "cells": cells,
        "executor_pod_name": result.served_by or None,
        "files": files,
        "files_left_out": left_out,
        "outcome": result.outcome.value,
        "cause": result.cause.value,
        "reason": result.message,
        "queue_time": result.queue_time_s,
        "setup_time": result.setup_time_s,
        "isolation_level": result.isolation_level.value,
    }


def _text(found: Mapping[str, OutputFile], path: str) -> str:
    file = found.get(path)
    return "" if file is None or file.status is not FileStatus.RETURNED else file.content.decode("utf-8", "replace")


def _cells(lines: str, most: int) -> list[Json]:
    """The lines that are results of cells, up to the first that is none."""
    cells: list[Json] = []
    for line in lines.splitlines()[:most]:
        try:
            cells.append(_cell(json.loads(line)))
        except (KeyError, TypeError, ValueError, RecursionError):
            break
    return cells


def _cell(entry: Mapping[str, Any]) -> Json:
    """KeyError or TypeError for what is no result of a cell."""
    cell = {name: entry[name] for name in ("stdout", "stderr", "display", "error")}
    for name, value in cell.items():
        kind = str if name in ("stdout", "stderr") else list
        if not isinstance(value, kind) or (kind is list and not all(isinstance(each, dict) for each in value)):
            raise TypeError(name)
    return {**cell, "truncated": bool(entry.get("truncated"))}


def _interrupted(result: ExecutionResult, stdout: str, stderr: str) -> Json:
    """The cell during which the program ended."""
    reason = result.message or "The interpreter ended in this cell."
    error = {"ename": result.outcome.value, "evalue": reason, "traceback": [reason]}
    return {"stdout": stdout, "stderr": stderr, "display": [], "error": [error], "truncated": False}
