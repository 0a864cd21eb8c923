"""Calls between two interpreters in two sandboxes, one at a time, over frames that somebody in the middle passes on.

A peer asks the other to do something with an object of the other's, and may be asked back before it is answered, as
with a function that is given a function. Plain values cross as copies; everything else as a reference to an object
that stays where it is. A list, dict or set that is passed and changed by the other side is changed here too.

`ask` frames hold `id`, `op` and `target` and the arguments; `answer` frames hold `id` and `ok` and what became of it.
Invariants: an answer is taken only with the id that is waited for; nothing that the other side sends runs code here but
what `perform` allows.
"""

from __future__ import annotations

import builtins
import json
import threading

from executor_service.guest.protocol.wire import short
from executor_service.guest.serve.values import Foreign, NotPlain, decode, encode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Protocol

    class Channel(Protocol):
        def receive(self) -> tuple[dict[str, Any], bytes] | None: ...

        def send(self, head: dict[str, Any], blob: bytes = b"") -> None: ...


MAX_TEXT = 1000
"""Characters of an error's text that cross."""


class Gone(BaseException):
    """The other side is not there any more, or does not keep to the protocol.

    No Exception: a test that expects any Exception must not take it for one.
    """


class Peer:
    """`perform(op, target, args, kwargs)` does what the other side asks for; `receive_reference` makes something of a
    reference to an object of the other side; `kind_of(value)` says what is told of an own object when it is exported.
    `restore`: changed arguments are sent back. `printed()` is what has been printed since it was last asked, and goes
    with an answer; `show(text)` is given what came with one.
    """

    def __init__(
        self,
        channel: Channel,
        perform: Callable[[str, Any, list[Any], dict[str, Any]], Any],
        receive_reference: Callable[[Peer, list[Any]], Any],
        kind_of: Callable[[Any], list[Any]],
        *,
        restore: bool,
        printed: Callable[[], str] = str,
        show: Callable[[str], Any] = str,
    ) -> None:
        self._channel = channel
        self._perform = perform
        self._receive_reference = receive_reference
        self._kind_of = kind_of
        self._restore = restore
        self._printed = printed
        self._show = show
        self._exports: list[Any] = []
        self._numbers: dict[int, int] = {}
        self._lock = threading.RLock()
        self.asked = 0
        """Number of times that this side has asked the other."""

    def export(self, value: Any) -> int:
        """The number of an object of this side; the same object always has the same."""
        number = self._numbers.get(id(value))
        if number is None:
            number = self._numbers[id(value)] = len(self._exports)
            self._exports.append(value)  # keeps it alive, and so its identity
        return number

    def ask(self, op: str, target: int, args: list[Any], kwargs: dict[str, Any] | None = None) -> Any:
        """Returns what the other side answers; raises what it raises, as the nearest built-in exception."""
        with self._lock:
            blob = encode([args, kwargs or {}], self._reference)
            self.asked += 1
            number = self.asked
            self._channel.send({"type": "ask", "id": number, "op": op, "target": target}, blob)
            while True:
                frame = self._channel.receive()
                if frame is None:
                    raise Gone("the other side is gone")
                head, blob = frame
                if head.get("type") == "ask":
                    self.answer(head, blob)
                elif head.get("type") == "answer" and head.get("id") == number:
                    return self._take(bool(head.get("ok")), blob, args)
                else:
                    raise Gone(str(head.get("reason", "the other side does not keep to the protocol"))[:MAX_TEXT])

    def answer(self, head: dict[str, Any], blob: bytes) -> None:
        """Does what the other side asks for, and tells it what became of it."""
        said: dict[str, Any] = {"ok": True}
        try:
            args, kwargs = self._decode(blob)
            before = [_fingerprint(arg) for arg in args] if self._restore else []
            value = self._perform(str(head.get("op")), self._own(head.get("target")), args, kwargs)
            changed = {i: args[i] for i, old in enumerate(before) if old is not None and old != _fingerprint(args[i])}
            text = encode([value, changed, self._printed()], self._reference)
        except Gone:
            raise
        except BaseException as error:  # whatever the code raises is its answer
            said, text = {"ok": False, "error": short(summary(error))}, self._describe(error)
        self._channel.send({"type": "answer", "id": head.get("id"), **said}, text)

    def _take(self, ok: bool, blob: bytes, args: list[Any]) -> Any:
        try:
            answer = self._decode(blob)
            if ok:
                value, changed, printed = answer
                self._show(str(printed))
                for i, new in changed.items():
                    _overwrite(args[i], new)
                return value
            *described, printed = answer
            self._show(str(printed))
            error = rebuild(*described)
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as problem:
            raise Gone(f"the other side sent what is no answer: {problem}"[:MAX_TEXT]) from None
        raise error

    def _describe(self, error: BaseException) -> bytes:
        """An exception: its class where that is one of the code's own, built-in bases, arguments, text, output."""
        kind, text = type(error), text_of(error)
        own = self._kind_of(kind)
        reference = kind if own[:1] == ["x"] else None
        printed = self._printed()
        names = [base.__name__ for base in kind.__mro__ if _is_builtin(base)]
        for args in (list(error.args), [text]):
            try:
                return encode([reference, names, args, summary(error), printed], self._reference)
            except Exception:  # noqa: S112 - arguments that can't cross are left out
                continue
        return encode([None, names, [], kind.__name__, printed])

    def _decode(self, blob: bytes) -> Any:
        return decode(blob, self._resolve)

    def _resolve(self, tree: list[Any]) -> Any:
        match tree:
            case ["r", int(number)]:
                return self._own(number)
            case ["r", str(name)]:
                return _builtin(name)
        return self._receive_reference(self, tree)

    def _own(self, number: Any) -> Any:
        if type(number) is not int or not 0 <= number < len(self._exports):
            raise ValueError(f"{number!r} is no object of this side")
        return self._exports[number]

    def _reference(self, value: Any) -> list[Any]:
        theirs = getattr(type(value), "_fairbox_number_of", None)
        if theirs is not None:
            return ["r", theirs(value)]
        if isinstance(value, type) and _is_builtin(value):
            return ["r", value.__name__]
        kind = self._kind_of(value)
        if not kind:
            raise Foreign(f"a value of type {type(value).__qualname__} can't be given to the other side")
        return [kind[0], self.export(value), *kind[1:]]


def text_of(error: BaseException) -> str:
    try:
        return str(error)[:MAX_TEXT]
    except BaseException:  # the text is made by the code
        return ""


def summary(error: BaseException) -> str:
    """Type and text of an exception on one line."""
    text = text_of(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _is_builtin(kind: type) -> bool:
    return getattr(builtins, kind.__name__, None) is kind


def _builtin(name: str) -> type:
    kind = getattr(builtins, name, None)
    if not isinstance(kind, type):
        raise ValueError(f"{name!r} is no built-in type")
    return kind


def rebuild(own: Any, names: list[str], args: list[Any], text: str) -> BaseException:
    """The exception that another side described: an own class of its, else the nearest built-in one that can be made.

    What ends an interpreter crosses as RuntimeError, but for SystemExit, which tests look for.
    """
    if isinstance(own, type) and issubclass(own, Exception):
        return own(*args)
    if "Exception" not in names and "SystemExit" not in names:
        return RuntimeError(f"the candidate raised {text}")
    for name in names:
        kind = getattr(builtins, name, None)
        if isinstance(kind, type) and (issubclass(kind, Exception) or kind is SystemExit):
            try:
                return kind(*args)
            except TypeError:  # it wants other arguments than it shows
                continue
    return RuntimeError(text)


def _fingerprint(value: Any) -> bytes | None:
    """Contents of a mutable argument; None for one that need not be looked at."""
    if type(value) not in (list, dict, set):
        return None
    try:
        return encode(value, lambda item: ["o", id(item)])
    except NotPlain:
        return json.dumps(id(value)).encode()


def _overwrite(old: Any, new: Any) -> None:
    if type(old) is list and type(new) is list:
        old[:] = new
    elif type(old) is dict and type(new) is dict:
        old.clear()
        old.update(new)
    elif type(old) is set and type(new) is set:
        old.clear()
        old |= new
