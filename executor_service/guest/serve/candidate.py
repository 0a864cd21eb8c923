"""Serves the candidate: loads its source as the module `solution`, and does what it is asked for with its objects.

This runs in the interpreter of the candidate, which can change everything here: nothing in this file protects
anything. What protects is that the values which leave this process are plain data, and that they are judged elsewhere.
"""

from __future__ import annotations

import importlib.util
import inspect
import os
import sys
import traceback
import types

from executor_service.guest.protocol.wire import short
from executor_service.guest.serve.branch import flush
from executor_service.guest.serve.forks import Forks
from executor_service.guest.serve.guest_rpc import Gone, Peer, summary

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from executor_service.guest.serve.guest_rpc import Channel

MODULE = "solution"
MAX_ECHO = 64 << 10
"""Characters of printed text that one answer carries to the checker."""
MODULE_NUMBER = 0
"""Number under which the checker knows the module."""


def serve(channel: Channel) -> None:
    """First a `load` frame, answered by `loaded` or `raised`; then `ask` frames, until the channel is closed.

    `load` says with `tests` whether tests will ask: changed arguments and printed text then go back with the answers;
    and with `forks` whether each `ask`, which says how much CPU time it may use, is to be answered by a fork of this
    process: `loaded` says whether it will. Then `over` follows each answer, or comes instead of it (`others`).
    """
    frame = channel.receive()
    if frame is None:
        return
    head, _ = frame
    forks = _forks(bare=bool(head.get("bare"))) if head.get("forks") else None
    try:
        module = load()
    except BaseException as error:  # whatever the code raises is its end, and told
        _tell(channel, error)
        return
    tests = bool(head.get("tests"))
    echo = Echo(sys.stdout)
    if tests:
        sys.stdout = echo
    peer = Peer(channel, Objects(module).perform, _callback, kind_of, restore=tests, printed=echo.take)
    peer.export(module)
    forks = forks if forks is not None and forks.possible() else None
    channel.send({"type": "loaded", "forks": forks is not None})
    while forks is not None and (frame := channel.receive()) is not None:
        _fork(forks, channel, peer, *frame)
    while (frame := channel.receive()) is not None:
        try:
            peer.answer(*frame)
        except Gone:
            return


def _forks(*, bare: bool) -> Forks | None:
    """None where it can't be known what a fork leaves."""
    try:
        return Forks(bare=bare)
    except OSError:
        return None


def _fork(forks: Forks, channel: Channel, peer: Peer, head: dict[str, Any], blob: bytes) -> None:
    """Has one question answered by a fork."""
    child = forks.fork(head["cpu_s"])
    if child is False:
        channel.send({"type": "over", **forks.over()})
        return
    try:
        if child is None:
            channel.send({"type": "others"})
        else:
            peer.answer(head, blob)
    finally:
        os._exit(0)


def load() -> types.ModuleType:
    """Runs `solution.py` of the work folder. What it is compiled to is not kept: nobody loads it again."""
    folder = os.getcwd()
    if sys.path[0] != folder:
        sys.path.insert(0, folder)
    sys.argv = [os.path.join(folder, f"{MODULE}.py")]
    spec = importlib.util.spec_from_file_location(MODULE, sys.argv[0])
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[MODULE] = module
    usual, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        spec.loader.exec_module(module)
    finally:
        sys.dont_write_bytecode = usual
    return module


def _tell(channel: Channel, error: BaseException) -> None:
    """As an interpreter would: the traceback on stderr, and its last line to the server."""
    traceback.print_exception(error)
    flush()
    channel.send({"type": "raised", "error": short(summary(error))})


class Echo:
    """Standard output that also keeps what is written, for tests that look at what is printed."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._kept: list[str] = []
        self._size = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        if self._size < MAX_ECHO:
            self._kept.append(text[: MAX_ECHO - self._size])
            self._size += len(text)
        return self._stream.write(text)  # type: ignore[no-any-return]

    def take(self) -> str:
        """Also sends on what is buffered: when it has answered, the process is ended without further ado."""
        flush()
        text, self._kept, self._size = "".join(self._kept), [], 0
        return text


class Objects:
    """The candidate's objects, as the other side may use them."""

    def __init__(self, module: types.ModuleType) -> None:
        self._module = module

    def perform(self, op: str, target: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        match op:
            case "call":
                return target(*args, **kwargs)
            case "get":
                return self._attribute(target, *args)
            case "entry":
                return self._call_entry(*args)
            case "names":
                names = getattr(target, "__all__", None) or [name for name in vars(target) if name[0] != "_"]
                return [name for name in names if not inspect.ismodule(getattr(target, name, None))]
            case "await":
                return _run(_awaited(target))
            case "isinstance":
                return isinstance(args[0], target)
            case "exit":
                return type(target).__exit__(target, None, None, None)
            case _:
                return _OPERATIONS[op](target, *args)

    def _attribute(self, target: Any, name: str) -> Any:
        value = getattr(target, name)
        if inspect.ismodule(value):
            raise AttributeError(f"{name!r} is a module, which can't cross; import it in the test")
        return value

    def _call_entry(self, name: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """`name` is a function of the module, or `Class.method`."""
        owner, _, method = name.rpartition(".")
        function = getattr(getattr(self._module, owner)(), method) if owner else getattr(self._module, name)
        try:
            value = function(*args, **kwargs)
            return _run(value) if inspect.iscoroutine(value) else value
        except BaseException as error:
            traceback.print_exception(error)
            raise


def _run(coroutine: Any) -> Any:
    import asyncio  # here: few need it, and every process that is forked from the zygote would pay for it

    return asyncio.run(coroutine)


async def _awaited(target: Any) -> Any:
    return await target


_OPERATIONS: dict[str, Any] = {
    "set": setattr,
    "del": delattr,
    "getitem": lambda target, key: target[key],
    "setitem": lambda target, key, value: target.__setitem__(key, value),
    "delitem": lambda target, key: target.__delitem__(key),
    "iter": iter,
    "next": next,
    "len": len,
    "bool": bool,
    "str": str,
    "repr": repr,
    "enter": lambda target: type(target).__enter__(target),
}


_BY_IDENTITY: object = object.__eq__


def kind_of(value: Any) -> list[Any]:
    """Describes an object that stays here to the other side; empty: it can't be given."""
    if inspect.ismodule(value) and value.__name__ != MODULE:
        return []
    kind = type(value)
    if issubclass(kind, type) and issubclass(value, Exception) and value.__module__ != "builtins":
        return ["x", value.__name__, [base.__name__ for base in value.__mro__ if base.__module__ == "builtins"]]
    return ["o", callable(value), kind.__qualname__, kind.__eq__ is _BY_IDENTITY]


def _callback(peer: Peer, tree: list[Any]) -> Any:
    """A function of the test, which the candidate can call."""
    number = tree[1]

    def function(*args: Any, **kwargs: Any) -> Any:
        return peer.ask("call", number, list(args), kwargs)

    return function
