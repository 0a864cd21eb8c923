"""Keeps an interpreter of Python between calls, inside a sandbox. A program of its own: nothing of fairbox is there but
`display.py` and `evaluate.py` beside this file.

`serve NAME FOLDER` leaves the interpreter behind, listening at a socket; `cell NAME` runs what is in its standard input
there. A cell writes to the streams of the `cell` that asked for it, and its results are lines of JSON in a file.
Invariants: a cell that has begun is run once; if its `cell` is killed it is interrupted, and after `_PATIENCE_S` the
interpreter ends.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import signal
import socket
import sys
import threading
import traceback
import types

TYPE_CHECKING = False
if TYPE_CHECKING:  # the import takes longer than a short cell
    from typing import Any

NOT_THERE, ENDED = 98, 99
"""Exit codes of `cell`: nothing began, because there is no such interpreter; it ended during the cell."""
_FOLDER = os.path.dirname(os.path.abspath(__file__))
_PATIENCE_S = 5.0
_NAMES = {
    "text/plain": "text",
    "text/html": "html",
    "text/markdown": "markdown",
    "text/latex": "latex",
    "image/svg+xml": "svg",
    "image/png": "png",
    "image/jpeg": "jpeg",
    "application/pdf": "pdf",
    "application/json": "json",
    "application/javascript": "javascript",
}
"""MIME type -> E2B's name."""
_IN_BASE64 = ("png", "jpeg", "pdf")


class Kernel:
    """The interpreter."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._count = self._shown = 0
        self._main = -1
        """Index of the display that is the cell's value."""
        sys.path[0] = _FOLDER
        self._displays = __import__("display").Displays()
        module = types.ModuleType("__main__")
        self._evaluator = __import__("evaluate").Evaluator(module.__dict__)
        for each in ("display", "evaluate"):  # names that the code may give to modules of its own
            del sys.modules[each]
        sys.modules["__main__"] = module
        module.__dict__["display"] = self._show
        sys.displayhook = self._hook
        sys.path[0] = ""
        sys.argv = [""]
        os.environ.setdefault("MPLBACKEND", "agg")

    def serve(self, listener: socket.socket) -> None:
        """Runs one cell after the other, forever."""
        signal.signal(signal.SIGINT, lambda *_: None)
        while True:
            connection, _ = listener.accept()
            with connection, contextlib.suppress(OSError, ValueError):  # who asked is gone
                self._answer(connection)

    def _answer(self, connection: socket.socket) -> None:
        connection.sendall(b"a")
        _, handles, _, _ = socket.recv_fds(connection, 1, 2)
        with connection.makefile("rb") as reader:
            request = json.loads(reader.readline())
        for number, handle in enumerate(handles, 1):
            os.dup2(handle, number)
            os.close(handle)
        done = threading.Event()
        watcher = threading.Thread(target=_interrupt, args=(connection, done), daemon=True)
        watcher.start()
        try:
            lines = self._run(request["code"], request["envs"])
            with open(f"{_FOLDER}/{self._name}.result", "w", encoding="utf-8", errors="backslashreplace") as file:
                file.writelines(json.dumps(line) + "\n" for line in lines)
        finally:
            done.set()
            _silence()
        connection.sendall(b"z")
        connection.shutdown(socket.SHUT_RDWR)
        watcher.join()

    def _run(self, code: str, envs: dict[str, str]) -> list[dict[str, Any]]:
        self._count += 1
        self._main, self._shown = -1, 0
        before = {key: os.environ.get(key) for key in envs}
        name, error = f"<cell {self._count}>", None
        try:
            os.environ.update(envs)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            try:
                self._evaluator.run(code, name, display=True)
                self._displays.add_open_figures()
            finally:
                signal.signal(signal.SIGINT, lambda *_: None)
        except BaseException as caught:
            error = caught
        for key, value in before.items():
            os.environ.pop(key, None)
            os.environ.update({key: value} if value is not None else {})
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        lines = [*self._results(), {"type": "number_of_executions", "execution_count": self._count}]
        return lines if error is None else [*lines, _described(error, name)]

    def _results(self) -> list[dict[str, Any]]:
        heads, blob = self._displays.take()
        found, start = [], 0
        for index, (sizes, _) in enumerate(heads):
            line: dict[str, Any] = {"type": "result", "is_main_result": index == self._main}
            for kind, size in sizes.items():
                data, start = blob[start : start + size], start + size
                name = _NAMES.get(kind, kind)
                value: Any = base64.b64encode(data).decode() if name in _IN_BASE64 else data.decode("utf-8", "replace")
                if name == "json":
                    with contextlib.suppress(ValueError):
                        value = json.loads(value)
                (line if kind in _NAMES else line.setdefault("extra", {}))[name] = value
            found.append(line)
        return found

    def _show(self, *values: Any) -> None:
        for value in values:
            self._displays.add(value)
            self._shown += 1

    def _hook(self, value: Any) -> None:
        if value is not None:
            self._main = self._shown
            self._show(value)
            sys.modules["builtins"].__dict__["_"] = value


def _described(error: BaseException, name: str) -> dict[str, Any]:
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename != name:
        trace = trace.tb_next
    kind, value, text = type(error).__name__, "", ""
    with contextlib.suppress(BaseException):  # an exception may be such that it can't be shown
        value = str(error)
        text = "".join(traceback.format_exception(type(error), error, trace))
    return {"type": "error", "name": kind, "value": value, "traceback": text}


def _interrupt(connection: socket.socket, done: threading.Event) -> None:
    """Interrupts the cell when the connection ends before it."""
    with contextlib.suppress(OSError):
        connection.recv(1)
    if not done.is_set():
        os.kill(os.getpid(), signal.SIGINT)
        if not done.wait(_PATIENCE_S):
            os._exit(1)


def _silence() -> None:
    handle = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(handle, number)
    os.close(handle)


def serve(name: str, folder: str) -> None:
    """Leaves the interpreter behind."""
    os.chdir(folder)
    address = f"{_FOLDER}/{name}.socket"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(address)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen(16)
    if child := os.fork():
        with open(f"{_FOLDER}/{name}.pid", "w") as file:
            file.write(str(child))
        return
    os.setsid()
    _silence()
    Kernel(name).serve(listener)


def cell(name: str) -> int:
    """Has a cell run, and returns when it has ended."""
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(f"{_FOLDER}/{name}.socket")
        if not connection.recv(1):
            return NOT_THERE
    except OSError:
        return NOT_THERE
    try:
        socket.send_fds(connection, [b"x"], [1, 2])
        connection.sendall(sys.stdin.buffer.read() + b"\n")
        return 0 if connection.recv(1) else ENDED
    except OSError:
        return ENDED


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(*sys.argv[2:4])
    else:
        sys.exit(cell(sys.argv[2]))
