"""Serves the check: runs assertions or pytest with the candidate's names standing for objects in another sandbox.

A `check` frame says what to do (its bytes are JSON: `style`, `setup`, `source`, `node_id`). While it is
done, `ask` frames go out and `answer` frames come in. The end is a `verdict` frame: `status` (passed, wrong, failed,
foreign, unavailable), and a message as its bytes; for pytest a `test` frame for each test before it, answered by `on`:
its bytes are the id of the test, of `name` bytes, and a message.
Invariants: no code of the candidate runs here, and its values are plain data, so nothing that it does can change how
the test decides: once it has said more than which functions it has, what goes wrong is its own doing, and the end of
an iteration is told by an iterator alone.
"""

from __future__ import annotations

import builtins
import importlib
import json
import linecache
import os
import re
import sys
import traceback
import types

from executor_service.guest.serve.guest_rpc import Gone, Peer, summary
from executor_service.guest.serve.remote import References, RemoteCallable
from executor_service.guest.serve.values import Foreign

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from executor_service.guest.serve.guest_rpc import Channel

MODULE = "solution"
MODULE_NUMBER = 0
SETUP, CASE = "<setup>", "<case>"
_ANSWERED_WRONGLY = ("assert", "AssertionError", "Failed: DID NOT")
"""Beginnings of pytest's line on a failure if the candidate has answered, wrongly."""
MAX_MESSAGE = 2000
"""Characters of the sentence that says what failed."""


def serve(channel: Channel) -> None:
    frame = channel.receive()
    if frame is None:
        return
    asked = json.loads(frame[1])
    peer = TestsPeer(channel, _perform, References(), _kind_of, restore=False, show=_show)
    if sys.path[0] != os.getcwd():
        sys.path.insert(0, os.getcwd())
    sys.modules[MODULE] = RemoteModule(peer)
    if asked["style"] == "pytest":
        status, message = run_pytest(channel, asked["node_id"])
    else:
        status, message = run_assertions(peer, asked["setup"], asked["source"])
    channel.send({"type": "verdict", "status": status}, _bytes(message[:MAX_MESSAGE]))


class TestsPeer(Peer):
    """Asks the candidate for the tests."""

    answered = False
    """The candidate has returned or raised anything, or has something else than a function by some name."""

    def ask(self, op: str, target: int, args: list[Any], kwargs: dict[str, Any] | None = None) -> Any:
        """As a peer does, but for two things that would let a candidate decide."""
        try:
            value = super().ask(op, target, args, kwargs)
        except Foreign as error:
            if not self.answered:
                raise  # the test's own mistake
            raise TypeError(str(error)) from None
        except BaseException as error:
            self.answered = True
            if isinstance(error, StopIteration | StopAsyncIteration) and op != "next":
                # As in a generator: passed on, it would end a loop of the test's, `all(map(...))` with success.
                raise RuntimeError(f"the candidate raised {summary(error)}") from None
            raise
        looked_up = op == "names" or (op == "get" and target == MODULE_NUMBER and type(value) is RemoteCallable)
        self.answered = self.answered or not looked_up
        return value


def _perform(op: str, target: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """The candidate may call the functions that it was given, and do nothing else here."""
    if op != "call":
        raise TypeError("functions of a test can be called, and nothing else")
    return target(*args, **kwargs)


def _kind_of(value: Any) -> list[Any]:
    return ["o"] if callable(value) and not isinstance(value, type) else []


def _show(text: str) -> None:
    if text:
        sys.stdout.write(text)


class RemoteModule(types.ModuleType):
    """The module `solution` of the candidate."""

    def __init__(self, peer: Peer) -> None:
        super().__init__(MODULE)
        self.__dict__["_fairbox_ask"] = lambda op, *args: peer.ask(op, MODULE_NUMBER, list(args))

    def __getattr__(self, name: str) -> Any:
        if name == "__all__":
            return self._names_for(sys._getframe(1).f_globals)
        if name.startswith("__"):
            raise AttributeError(f"module {MODULE!r} has no attribute {name!r}")
        return self._fairbox_ask("get", name)

    def _names_for(self, importer: dict[str, Any]) -> list[str]:
        """Names that `from solution import *` brings: none that is a built-in, that the importing module has already,
        or that pytest would take for a test or a setting."""
        names = [str(each) for each in self._fairbox_ask("names")]
        taken = ("test", "Test", "pytest", "setup", "teardown", "_")
        return [n for n in names if n not in importer and not hasattr(builtins, n) and not n.startswith(taken)]

    def __setattr__(self, name: str, value: object) -> None:
        if name.startswith("__"):  # the import system's own
            super().__setattr__(name, value)
            return
        raise TypeError(f"{name!r} of the candidate's module can't be replaced: it is in another process")


class Names(dict[str, "Any"]):
    """Globals of the assertions: what they define, built-in names, standard modules, and then the candidate's.

    Built-in names are never the candidate's: one who defines `abs` or `sorted` would decide `abs(f(x) - 3) < 1e-6`.
    `from solution import sum` says so where it is meant. A standard module that the text does not import, and of which
    it uses what the module has (`math.isclose`), is that module: tests are often written beside a solution that imports
    it. `queue.push` is the candidate's: the module has none.
    """

    def __init__(self, peer: Peer, texts: list[str]) -> None:
        super().__init__(__name__="__case__", __builtins__=builtins)
        self._peer = peer
        self._texts = texts

    def __missing__(self, name: str) -> Any:
        if hasattr(builtins, name) or name.startswith("__"):
            raise KeyError(name)
        if name in sys.stdlib_module_names and (module := self._module(name)) is not None:
            return module
        try:
            return self._peer.ask("get", MODULE_NUMBER, [name])
        except AttributeError:
            raise KeyError(name) from None

    def _module(self, name: str) -> types.ModuleType | None:
        """The standard module, if it has all that the text uses of this name, and the name itself is never called."""
        used = [part for text in self._texts for part in re.findall(rf"(?<![\w.]){name}\s*(?:\.\s*(\w+)|\()", text)]
        if not all(used):  # empty where it is called
            return None
        module = importlib.import_module(name)
        return module if used and all(hasattr(module, part) for part in used) else None


def run_assertions(peer: Peer, setup: str, source: str) -> tuple[str, str]:
    """Status and message."""
    names = Names(peer, [setup, source])
    try:
        for name, text in ((SETUP, setup), (CASE, source)):
            # Assertions hold whatever the interpreter's flags are.
            code = compile(text, name, "exec", optimize=0, dont_inherit=True)
            linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
            exec(code, names)  # noqa: S102 - that is what a checker is for
    except BaseException as error:  # whatever is raised is the verdict
        return _status(error), _said(error)
    return "passed", ""


def _status(error: BaseException) -> str:
    if isinstance(error, Foreign):
        return "foreign"
    return "wrong" if isinstance(error, AssertionError) else "failed"


def _said(error: BaseException) -> str:
    """The error's last line, and the line of the case that it left from."""
    text = summary(error)
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename in (SETUP, CASE)]
    if isinstance(error, SyntaxError) or not frames:
        return text
    where = "setup_code" if frames[-1].filename == SETUP else "the case"
    return f"{text} (line {frames[-1].lineno} of {where}: {frames[-1].line})"


def run_pytest(channel: Channel, node_id: str) -> tuple[str, str]:
    """Status and message; a `test` frame for every test that ended."""
    try:
        import pytest
    except ImportError as error:
        return "unavailable", f"pytest can't be imported in the sandbox: {error}"
    recorder = Recorder(channel)
    options = ["-q", "-p", "no:cacheprovider", "--rootdir", os.getcwd()]
    try:
        # Without a node id: what pytest finds by the names of the files.
        code = int(pytest.main([*options, *([node_id] if node_id else [])], plugins=[recorder]))
    except BaseException as error:  # a conftest.py can raise anything
        return "failed", _said(error)
    if recorder.problem:
        return "failed", recorder.problem
    if recorder.worst is not None:
        return recorder.worst
    if code == 0 and recorder.ended:
        return "passed", ""
    return "failed", f"pytest ended with exit code {code} after {recorder.ended} tests"


class Recorder:
    """A plugin of pytest that tells the server of each test as it ends."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._status: dict[str, tuple[str, str]] = {}
        self.ended = 0
        """Tests that have ended."""
        self.worst: tuple[str, str] | None = None
        """Status and message of the first test that did not pass, were it only skipped."""
        self.problem = ""
        """Why something could not be collected."""

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self.problem = self.problem or f"{report.nodeid}: {_last_line(report)}"

    def pytest_runtest_logreport(self, report: Any) -> None:
        known, _ = self._status.get(report.nodeid, ("", ""))
        if report.failed:
            line = _last_line(report)
            self._status[report.nodeid] = ("wrong" if line.startswith(_ANSWERED_WRONGLY) else "failed", line)
        elif report.skipped and known in ("", "passed"):
            self._status[report.nodeid] = ("skipped", f"the test was skipped: {_last_line(report)}")
        elif report.when == "call" and not known:
            self._status[report.nodeid] = ("passed", "")

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        status, message = self._status.pop(nodeid, ("failed", "the test has no result"))
        self.ended += 1
        if status != "passed" and self.worst is None:
            self.worst = status, message
        name = _bytes(nodeid)
        self._channel.send({"type": "test", "status": status, "name": len(name)}, name + _bytes(message[:MAX_MESSAGE]))
        if self._channel.receive() is None:  # the server has taken note
            raise Gone("the server is gone")


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "replace")


def _last_line(report: Any) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    if crash is not None:
        return f"{crash.message} (line {crash.lineno} of {os.path.basename(crash.path)})"
    if isinstance(report.longrepr, tuple):
        return str(report.longrepr[-1])
    lines = str(report.longrepr or "").strip().splitlines()
    return lines[-1] if lines else ""
