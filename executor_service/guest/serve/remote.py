"""Proxies that the checker holds instead of the candidate's objects.

A remote object passes calls, attributes, items, iteration, length, truth and text on to the candidate. What would let
an object of the candidate decide a comparison is not passed on: `==` and `!=` know identity alone, and ordering,
arithmetic, conversions to numbers and `in` (which goes by iteration) never ask an object. So what passes `== 3` is a
number of this side.
"""

from __future__ import annotations

import builtins

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator
    from typing import Any, NoReturn

    from executor_service.guest.serve.guest_rpc import Peer

_NOT_ASKED = ("_pytest", "pytestmark", "_fairbox", "_is_coroutine")
"""Beginnings of attributes that test tools look for on everything."""
_TOLD = ("__name__", "__qualname__", "__doc__")
"""Special attributes that are asked for; all others are those of the proxy."""


class NeedsClass(TypeError):
    """The test uses an object of the candidate in a way that only works in the candidate's own process."""

    __module__ = "builtins"  # shortens what is said of it


class Remote:
    """An object of the candidate."""

    __slots__ = ("_fairbox_name", "_fairbox_number", "_fairbox_peer", "_fairbox_plain")

    def __init__(self, peer: Peer, number: int, name: str, *, plain: bool) -> None:
        object.__setattr__(self, "_fairbox_peer", peer)
        object.__setattr__(self, "_fairbox_number", number)
        object.__setattr__(self, "_fairbox_name", name)
        object.__setattr__(self, "_fairbox_plain", plain)

    def _fairbox_number_of(self) -> int:
        return self._fairbox_number  # type: ignore[no-any-return]

    def _fairbox_ask(self, op: str, *args: Any, **kwargs: Any) -> Any:
        return self._fairbox_peer.ask(op, self._fairbox_number, list(args), kwargs)

    def _fairbox_refuse(self, what: str) -> NoReturn:
        raise NeedsClass(
            f"an object of the candidate's type {self._fairbox_name} can't be {what} here: only plain data can"
        )

    def __getattr__(self, name: str) -> Any:
        if name.startswith(_NOT_ASKED) or (name.startswith("__") and name.endswith("__") and name not in _TOLD):
            raise AttributeError(f"{name!r} of an object of the candidate is not asked for")
        return self._fairbox_ask("get", name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._fairbox_ask("set", name, value)

    def __delattr__(self, name: str) -> None:
        self._fairbox_ask("del", name)

    def __getitem__(self, key: Any) -> Any:
        return self._fairbox_ask("getitem", key)

    def __setitem__(self, key: Any, value: Any) -> None:
        self._fairbox_ask("setitem", key, value)

    def __delitem__(self, key: Any) -> None:
        self._fairbox_ask("delitem", key)

    def __iter__(self) -> Iterator[Any]:
        return self._fairbox_ask("iter")  # type: ignore[no-any-return]

    def __next__(self) -> Any:
        return self._fairbox_ask("next")

    def __len__(self) -> int:
        return self._fairbox_ask("len")  # type: ignore[no-any-return]

    def __bool__(self) -> bool:
        return self._fairbox_ask("bool") is True

    def __str__(self) -> str:
        return self._fairbox_text("str")

    def __repr__(self) -> str:
        return self._fairbox_text("repr")

    def _fairbox_text(self, op: str) -> str:
        text = self._fairbox_ask(op)
        return text if type(text) is str else f"<object of the candidate's type {self._fairbox_name}>"

    def __enter__(self) -> Any:
        return self._fairbox_ask("enter")

    def __exit__(self, *_: object) -> None:
        self._fairbox_ask("exit")

    def __await__(self) -> Generator[Any, Any, Any]:
        yield from ()  # makes it a generator; there is nothing to wait for here
        return self._fairbox_ask("await")

    def __instancecheck__(self, instance: object) -> bool:
        return isinstance(instance, Remote) and self._fairbox_ask("isinstance", instance) is True

    def __hash__(self) -> int:
        return hash(("remote", self._fairbox_number))

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if isinstance(other, Remote) and self._fairbox_plain and other._fairbox_plain:
            return False  # two objects whose types compare by identity
        return self._fairbox_refuse("compared")

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __mro_entries__(self, bases: tuple[object, ...]) -> NoReturn:
        self._fairbox_refuse("extended")


class RemoteCallable(Remote):
    """A function or class of the candidate, or an object of it that can be called."""

    __slots__ = ()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._fairbox_peer.ask("call", self._fairbox_number, list(args), kwargs)


def _refuse(what: str) -> Callable[..., NoReturn]:
    def method(self: Remote, *_: object) -> NoReturn:
        self._fairbox_refuse(what)

    return method


for _name in ("lt", "le", "gt", "ge"):
    setattr(Remote, f"__{_name}__", _refuse("compared"))
for _name in (
    "add",
    "sub",
    "mul",
    "truediv",
    "floordiv",
    "mod",
    "pow",
    "matmul",
    "and",
    "or",
    "xor",
    "lshift",
    "rshift",
):
    setattr(Remote, f"__{_name}__", _refuse("calculated with"))
    setattr(Remote, f"__r{_name}__", _refuse("calculated with"))
for _name in ("neg", "pos", "abs", "invert", "int", "float", "complex", "index", "round", "divmod", "rdivmod"):
    setattr(Remote, f"__{_name}__", _refuse("calculated with"))


class References:
    """Makes the checker's side of the candidate's references; the same reference is the same object."""

    def __init__(self) -> None:
        self._known: dict[int, Any] = {}

    def __call__(self, peer: Peer, tree: list[Any]) -> Any:
        match tree:
            case ["o", int(number), _, "coroutine", _]:
                return _coroutine(Remote(peer, number, "coroutine", plain=True))
            case ["o", int(number), bool(callable_), str(name), bool(plain)]:
                kind = RemoteCallable if callable_ else Remote
                return self._known.setdefault(number, kind(peer, number, name[:100], plain=plain))
            case ["x", int(number), str(name), list(bases)]:
                return self._known.setdefault(number, _exception(name[:100], bases))
        raise ValueError("that is no reference")


async def _coroutine(remote: Remote) -> Any:
    """A coroutine of this side, for those who look whether it is one."""
    return await remote


def _exception(name: str, bases: list[Any]) -> type[Exception]:
    """A class of this side that stands for an exception class of the candidate."""
    base: type[Exception] = Exception
    for each in bases:
        kind = getattr(builtins, each, None) if type(each) is str else None
        if isinstance(kind, type) and issubclass(kind, Exception):
            base = kind
            break
    return type(name, (_Stand, base), {"__module__": "solution"})


class _Stand(Exception):
    """Lets a stand-in take any arguments."""

    def __init__(self, *args: object) -> None:
        BaseException.__init__(self)
        self.args = args
