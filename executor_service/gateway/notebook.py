"""Runs cells one after the other in one interpreter, as a notebook does. It is put into a sandbox as a program.

Uses the standard library alone and imports nothing of fairbox. It reads CELLS, removes it, and appends a line of
JSON to RESULTS as each cell ends, so that what was done is there however the program ends; what the cell of that moment
has printed is in STDOUT and STDERR. A cell that fails does not stop the next. Nothing here is trusted by the server:
cells can write those files as well.
"""

from __future__ import annotations

import ast
import base64
import contextlib
import inspect
import io
import json
import linecache
import os
import signal
import sys
import traceback
import types
import warnings
from pathlib import Path
from typing import Any

FOLDER = ".notebook"
RESULTS, STDOUT, STDERR = f"{FOLDER}/results", f"{FOLDER}/stdout", f"{FOLDER}/stderr"
CELLS = ".cells.json"
_TEXT_BYTES = 1 << 20
"""Kept of each stream of a cell."""
_ALL_BYTES = 12 << 20
"""Kept of all cells together; what comes then is cut and marked `truncated`."""
_FORMS = {
    "_repr_html_": "text/html",
    "_repr_markdown_": "text/markdown",
    "_repr_latex_": "text/latex",
    "_repr_svg_": "image/svg+xml",
    "_repr_png_": "image/png",
    "_repr_jpeg_": "image/jpeg",
    "_repr_json_": "application/json",
}


class CellTimeout(BaseException):
    """The cell ran for longer than it may. Not an Exception, so that `except Exception` does not swallow it."""


class Notebook:
    def __init__(self, cell_timeout_s: float) -> None:
        self._timeout_s = cell_timeout_s
        self._displays: list[dict[str, object]] = []
        self._left = _ALL_BYTES
        self._loop: Any = None
        self._driver = sys.modules["__main__"]  # kept: its functions are in use
        self._module = types.ModuleType("__main__")
        self._module.__dict__.update(display=self.display, __builtins__=__builtins__)
        sys.modules["__main__"] = self._module
        Path(FOLDER).mkdir(exist_ok=True)
        self._results = Path(RESULTS).open("w", encoding="utf-8")  # noqa: SIM115 - open as long as the program
        self._files = [os.open(name, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600) for name in (STDOUT, STDERR)]
        for file, number in zip(self._files, (1, 2), strict=True):
            os.dup2(file, number)
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(line_buffering=True)
        os.environ.setdefault("MPLBACKEND", "Agg")  # there is no screen; what is drawn is shown at the end of the cell
        warnings.filterwarnings("ignore", "FigureCanvasAgg is non-interactive")
        signal.signal(signal.SIGALRM, self._late)

    def run(self, number: int, source: str) -> None:
        """One cell, from its source to its line of results."""
        self._displays = []
        error: list[dict[str, object]] = []
        try:
            try:
                signal.setitimer(signal.ITIMER_REAL, max(self._timeout_s, 0.0))
                self._execute(f"<cell {number}>", source)
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0.0)
            self._figures()
        except BaseException as failure:  # a cell may raise anything, SystemExit and KeyboardInterrupt too
            error = [_described(failure)]
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):  # closed or replaced by the cell: nothing to flush
                stream.flush()
        printed = [self._taken(file) for file in self._files]
        result = {
            "stdout": printed[0][0],
            "stderr": printed[1][0],
            "display": self._displays,
            "error": error,
            "truncated": printed[0][1] or printed[1][1],
        }
        line = json.dumps(result)
        if len(line) > self._left:
            result |= {"display": [], "truncated": True}
            line = json.dumps(result)
        if len(line) > self._left:
            result |= {"stdout": "", "stderr": ""}
            line = json.dumps(result)
        self._left -= len(line)
        self._results.write(line + "\n")
        self._results.flush()

    def display(self, *values: object) -> None:
        """What notebooks call to show a value in all its forms."""
        self._displays += [bundle(value) for value in values]

    def _execute(self, name: str, source: str) -> None:
        linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
        tree = ast.parse(source, name)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        self._evaluate(compile(tree, name, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT))
        if isinstance(last, ast.Expr):
            shown = ast.Expression(last.value)
            value = self._evaluate(compile(shown, name, "eval", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT))
            if value is not None and not source.rstrip().endswith(";"):
                self.display(value)

    def _evaluate(self, code: types.CodeType) -> object:
        value = eval(code, self._module.__dict__)  # noqa: S307 - what this program is for
        if not code.co_flags & inspect.CO_COROUTINE:
            return value
        if self._loop is None:
            import asyncio  # here, because few cells await anything

            self._loop = asyncio.new_event_loop()
        return self._loop.run_until_complete(value)

    def _figures(self) -> None:
        """Shows what matplotlib has drawn."""
        pyplot = sys.modules.get("matplotlib.pyplot")
        if pyplot is None:
            return
        for number in pyplot.get_fignums():
            figure, buffer = pyplot.figure(number), io.BytesIO()
            figure.savefig(buffer, format="png", bbox_inches="tight")
            self._displays.append({"image/png": _base64(buffer.getvalue()), "text/plain": repr(figure)})
        pyplot.close("all")

    def _taken(self, file: int) -> tuple[str, bool]:
        """(what was printed since the last time, whether it was cut)."""
        size = os.fstat(file).st_size
        data = os.pread(file, _TEXT_BYTES, 0)
        os.ftruncate(file, 0)
        return data.decode("utf-8", "replace"), size > len(data)

    def _late(self, *_: object) -> None:
        raise CellTimeout(f"the cell ran for longer than {self._timeout_s:g} s (cell_timeout)")


def bundle(value: object) -> dict[str, object]:
    """MIME type -> content: text, base64 for pictures, plain data for JSON."""
    forms: dict[str, object] = {}
    if not isinstance(value, type):
        whole = _called(value, "_repr_mimebundle_")
        if isinstance(whole, tuple):
            whole = whole[0]
        if isinstance(whole, dict):
            forms |= whole
        for method, mime in _FORMS.items():
            form = _called(value, method)
            if form is not None:
                forms.setdefault(mime, form[0] if isinstance(form, tuple) else form)
    forms.setdefault("text/plain", repr(value))
    return {str(mime): _base64(data) if isinstance(data, bytes) else _plain(data) for mime, data in forms.items()}


def _called(value: object, name: str) -> object:
    try:
        return getattr(value, name)()
    except Exception:  # it has no such form, or can't be shown in it
        return None


def _plain(data: object) -> object:
    try:
        json.dumps(data, allow_nan=False)
    except (TypeError, ValueError):
        return str(data)
    return data


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _described(failure: BaseException) -> dict[str, object]:
    """As notebooks describe an exception; without the lines of this file."""
    trace = failure.__traceback__
    while trace is not None and not trace.tb_frame.f_code.co_filename.startswith("<cell "):
        trace = trace.tb_next
    try:
        lines = "".join(traceback.format_exception(type(failure), failure, trace)).splitlines()
        text = str(failure)
    except Exception:  # an exception that can't be shown
        lines, text = [type(failure).__name__], ""
    return {"ename": type(failure).__name__, "evalue": text, "traceback": lines}


def main() -> None:
    asked = json.loads(Path(CELLS).read_text(encoding="utf-8"))
    Path(CELLS).unlink()
    notebook = Notebook(asked["cell_timeout"])
    for number, source in enumerate(asked["cells"], 1):
        notebook.run(number, source)


if __name__ == "__main__":
    main()
