"""Serves a session: runs one cell after the other in this interpreter, whose `__main__` keeps what they leave.

Frames in: `cell` (code, then standard input, then files), `branch`. Frames out: `ready` once, from a branch too;
`done` for each cell, after its output was flushed; `forked` or `refused` for each branch. The bytes of `done` are a
table in JSON that says how the others are divided (nothing where there are none), then the texts of an exception that
is to be told, then what was displayed, then files.

Invariants: nothing that a cell raises ends the session, SystemExit included; a signal to interrupt has an effect during
a cell alone; tracebacks begin in the cell and show its lines. This runs in the interpreter of the code, which can
change everything here: what protects others is that the server takes what comes for a claim of that code.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # what `signal` wraps: its enums cost each cell more than the calls
import builtins
import importlib.machinery
import os
import resource
import sys
import time
import traceback

from executor_service.guest.program import system_exit
from executor_service.guest.protocol import wire
from executor_service.guest.serve import branch
from executor_service.guest.serve.display import Displays
from executor_service.guest.serve.evaluate import Evaluator
from executor_service.guest.serve.work_folder import WORKSPACE, put_files, send_done, split_cell
from executor_service.guest.walls.tree import resident_bytes, waited_s

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from executor_service.guest.protocol.wire import GuestChannel, Head

_MAX_RAISED = 100_000
"""Characters of its text, and of its traceback, where they are told in the answer."""
_MAX_KIND = 256
"""Characters of its name there."""


def serve(channel: GuestChannel) -> None:
    """Serves until the channel ends."""
    try:
        CellServer(channel).serve()
    except BaseException:  # nothing of ours is above that could do better
        traceback.print_exc()
        os._exit(1)


class CellServer:
    def __init__(self, channel: GuestChannel) -> None:
        self._channel = channel
        self._displays = Displays()
        self._work = os.getcwd()
        self._temporary = os.environ.get("TMPDIR", "/tmp")  # noqa: S108 - private
        self._workspace = os.environ.get(WORKSPACE, "")
        self._has_stdin = False
        self._pid = os.getpid()
        names = sys.modules["__main__"].__dict__
        names.pop("__cached__", None)
        names["display"] = self._display
        self._program = names["__file__"]
        if sys.argv == [""]:
            # As `python` without a program.
            names.pop("__file__", None)
            names["__loader__"] = importlib.machinery.BuiltinImporter
            sys.path[0] = ""
        sys.displayhook = self._hook
        self._evaluator = Evaluator(names)

    def serve(self) -> None:
        _signal.signal(_signal.SIGINT, _nothing)
        self._tell_ready()
        while (frame := self._channel.receive()) is not None:
            head, blob = frame
            if head["type"] == "cell":
                self._run(head, blob)
            elif head["type"] == "branch":
                self._branch(head["workspace"])

    def _tell_ready(self) -> None:
        self._channel.send({"type": "ready"})

    def _run(self, head: Head, blob: bytes) -> None:
        code, stdin, files = split_cell(head, blob)
        source = bytes(code).decode()
        cpu = _cpu_s()
        try:
            self._set_stdin(bytes(stdin))
            put_files(self._work, head["files"], files)
        except OSError as error:
            self._answer(head, cpu, {"problem": wire.short(f"the cell's files could not be written: {error}")})
            return
        name = head["name"] or self._program
        raised = self._guarded(lambda: self._evaluator.run(source, name, display=head["display"]))
        ending = self._ending(raised, name, told=head["told"])
        if os.getpid() != self._pid:
            # A child that the code has forked and that has come to the end of the cell: that is its own end too.
            branch.flush()
            os._exit(ending["exit_code"])
        self._answer(head, cpu, ending)

    def _guarded(self, work: Callable[[], None]) -> BaseException | None:
        """Runs the cell's code and returns what it raises."""
        try:
            _signal.signal(_signal.SIGINT, _signal.default_int_handler)
            try:
                work()
                self._displays.add_open_figures()
            finally:
                _signal.signal(_signal.SIGINT, _nothing)
        except BaseException as error:
            _signal.signal(_signal.SIGINT, _nothing)  # the interrupt may have come between the two lines above
            return error
        return None

    def _ending(self, error: BaseException | None, name: str, *, told: bool) -> Head:
        """`told`: an exception, SystemExit too, is described in the answer; else it is printed."""
        if error is None:
            return {"exit_code": 0}
        if isinstance(error, SystemExit) and not told:
            return {"exit_code": system_exit(error), "exited": True}
        error.__traceback__ = _from_cell(error.__traceback__, name)
        sys.last_type, sys.last_value, sys.last_traceback = type(error), error, error.__traceback__
        if told:
            return {"exit_code": 1, "raised": _described(error)}
        try:
            traceback.print_exception(error)
        except BaseException:
            text = "".join(traceback.format_exception_only(type(error), error))
            os.write(2, text.encode("utf-8", "backslashreplace"))
        return {"exit_code": 1, "error": _summary(error)}

    def _answer(self, head: Head, cpu_before: float, ending: Head) -> None:
        branch.flush()
        raised = [text.encode("utf-8", "replace") for text in ending.pop("raised", ())]
        displays, shown = self._displays.take()
        sizes = {"raised": [len(text) for text in raised], "displays": displays}
        facts = {
            "cpu_s": _cpu_s() - cpu_before,
            "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10,
            "resident_bytes": resident_bytes(),
            **ending,
        }
        parts = [*raised, shown] if raised or displays else []
        send_done(self._channel, self._work, head, facts, sizes, parts)

    def _set_stdin(self, data: bytes) -> None:
        """Standard input of the coming cell; without any it is at its end."""
        if not data and not self._has_stdin:
            return
        handle = os.memfd_create("stdin") if data else os.open("/dev/null", os.O_RDONLY)
        view = memoryview(data)
        while view:
            view = view[os.write(handle, view) :]
        if data:
            os.lseek(handle, 0, os.SEEK_SET)
        os.dup2(handle, 0)
        os.close(handle)
        sys.stdin = open(0, encoding=sys.__stdin__.encoding, errors=sys.__stdin__.errors, closefd=False)  # type: ignore[union-attr]  # noqa: SIM115
        self._has_stdin = bool(data)

    def _hook(self, value: Any) -> None:
        """Displays the value of an expression."""
        if value is not None:
            self._displays.add(value)
            builtins._ = value  # type: ignore[attr-defined]

    def _display(self, *values: Any) -> None:
        """Shows values in their richest forms, as a notebook does."""
        for value in values:
            self._displays.add(value)

    def _branch(self, workspace: str) -> None:
        handles = self._channel.receive_handles(branch.HANDLES)
        reason = self._evaluator.obstacle() or branch.obstacle()
        if len(handles) < branch.HANDLES:
            reason = "it has too many open files"
        is_branch = False
        if not reason:
            is_branch, reason = branch.fork()
        if is_branch:
            self._become(handles, workspace)
            return
        for handle in handles:
            os.close(handle)
        self._channel.send({"type": "refused", "reason": wire.short(reason)} if reason else {"type": "forked"})

    def _become(self, handles: list[int], workspace: str) -> None:
        """In the branch: goes on as a session of its own."""
        self._pid = os.getpid()
        self._has_stdin = True  # what is left of the last cell's is shared with the parent
        self._set_stdin(b"")
        try:
            folders = branch.Folders(self._work, self._workspace, self._temporary)
            self._work, self._workspace = branch.settle(self._channel.fileno(), handles, folders, workspace)
        except OSError as error:
            reason = wire.short(f"its folders can't be copied: {error}")
            self._channel.send({"type": "refused", "reason": reason})
            os._exit(0)
        self._tell_ready()


def _from_cell(trace: Any, name: str) -> Any:
    """The traceback from the first frame of the cell on; without one, from the first frame that is not ours."""
    found = trace
    while found is not None and found.tb_frame.f_code.co_filename != name:
        found = found.tb_next
    if found is not None:
        return found
    while trace is not None and trace.tb_frame.f_globals.get("__package__") == __package__:
        trace = trace.tb_next
    return trace


def _summary(error: BaseException) -> str:
    lines = "".join(traceback.format_exception_only(error)).strip().splitlines()
    return wire.short(lines[-1] if lines else type(error).__name__)


def _described(error: BaseException) -> tuple[str, str, str]:
    """An exception as notebooks describe it: name, text and traceback."""
    kind = type(error).__name__[:_MAX_KIND]
    try:
        text, lines = str(error), "".join(traceback.format_exception(error))
    except BaseException:  # it can't be shown
        text, lines = "", kind
    return kind, text[:_MAX_RAISED], lines[:_MAX_RAISED]


def _cpu_s() -> float:
    """CPU seconds of this process and of its children that it waited for."""
    return time.process_time() + waited_s()


def _nothing(*_: object) -> None:
    """An interrupt between cells comes too late for one and too early for the other."""
