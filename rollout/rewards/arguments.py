"""Arguments of functions out of a file: their names, types and values, against the function's signature. Pure.

Nothing is converted but what loses nothing: an int where a float is wanted, a list where a tuple or a set is, a text
where an enum's value is. Annotations may be those of scalars, `Literal`, enums, unions, and lists, tuples, sets and
mappings of them; what is annotated `Any`, or not at all, takes everything. `**name: Unpack[T]` of a TypedDict stands
for its keys.
"""

from __future__ import annotations

import difflib
import enum
import inspect
import math
import types
import typing
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

from fairbox.errors import ConfigError

__all__ = ["Argument", "arguments_of", "checked_arguments"]

_SCALARS = {bool: "true or false", int: "a whole number", float: "a number", str: "a text", type(None): "null"}


@dataclass(frozen=True, slots=True)
class Argument:
    """One that a file may give."""

    wanted: Any
    """Its annotation; Any where there is none."""
    required: bool


def arguments_of(function: Callable[..., Any]) -> dict[str, Argument]:
    """The keyword-only arguments, and the keys of an unpacked TypedDict. ValueError for other `**` parameters, which
    would swallow what is misspelt."""
    parameters = inspect.signature(function).parameters.values()
    asked = [p for p in parameters if p.kind in (p.KEYWORD_ONLY, p.VAR_KEYWORD)]
    # Of these alone: what the other parameters are annotated with may be there for type checkers only.
    named = types.SimpleNamespace(__annotations__={p.name: p.annotation for p in asked if p.annotation})
    hints = typing.get_type_hints(named, getattr(inspect.unwrap(function), "__globals__", None))
    found = {}
    for parameter in asked:
        wanted = hints.get(parameter.name, Any)
        if parameter.kind is parameter.KEYWORD_ONLY:
            found[parameter.name] = Argument(wanted, parameter.default is parameter.empty)
            continue
        inner = typing.get_args(wanted)
        if typing.get_origin(wanted) is not typing.Unpack or not typing.is_typeddict(inner[0]):
            raise ValueError(f"{parameter} would swallow misspelt arguments")
        hints_of_keys = typing.get_type_hints(inner[0], include_extras=True)
        found |= {key: _of_key(inner[0], key, hint) for key, hint in hints_of_keys.items()}
    return found


def _of_key(typed_dict: Any, key: str, hint: Any) -> Argument:
    """`__required_keys__` does not see Required and NotRequired in annotations that are texts."""
    origin = typing.get_origin(hint)
    if origin in (typing.Required, typing.NotRequired):
        return Argument(typing.get_args(hint)[0], origin is typing.Required)
    return Argument(hint, key in typed_dict.__required_keys__)


def checked_arguments(
    function: Callable[..., Any], given: Mapping[str, Any], *, name: str, path: str
) -> dict[str, Any]:
    """The arguments of `function` that `given` names, as it takes them. ConfigError with the path of the key; `name` is
    what the function is called there."""
    known = arguments_of(function)
    for key in given:
        if key not in known:
            raise ConfigError(f"{path}.{key} is not an argument of {name}; {_hint(str(key), list(known))}")
    for key, argument in known.items():
        if argument.required and key not in given:
            raise ConfigError(f"{path}.{key} is not set, and {name} has no default for it")
    taken = {}
    for key, value in given.items():
        try:
            taken[key] = _fitted(value, known[key].wanted)
        except _Unfit as problem:
            raise ConfigError(f"{path}.{key}{problem.where} is {problem.value!r}, must be {problem.wanted}") from None
    return taken


class _Unfit(Exception):  # noqa: N818 - an answer between the functions below
    def __init__(self, value: Any, wanted: str, where: str = "") -> None:
        super().__init__(wanted)
        self.value, self.wanted, self.where = value, wanted, where


def _hint(key: str, known: list[str]) -> str:
    if not known:
        return "it has none"
    near = difflib.get_close_matches(key, known, n=1)
    return f"did you mean {near[0]}?" if near else f"has: {', '.join(known)}"


def _fitted(value: Any, wanted: Any) -> Any:
    """`value` as the annotation `wanted` has it. Raises _Unfit."""
    origin, inner = typing.get_origin(wanted), typing.get_args(wanted)
    if wanted in (Any, object):
        return value
    if wanted in (None, *_SCALARS):
        return _scalar(value, type(None) if wanted is None else wanted)
    if origin is typing.Annotated:
        return _fitted(value, inner[0])
    if origin is typing.Literal:
        if any(value == each and type(value) is type(each) for each in inner):
            return value
        raise _Unfit(value, _one_of(inner))
    if origin in (typing.Union, types.UnionType):
        return _one_that_fits(value, inner)
    if isinstance(wanted, type) and issubclass(wanted, enum.Enum):
        try:
            return wanted(value)
        except ValueError:
            raise _Unfit(value, _one_of([each.value for each in wanted])) from None
    return _collection(value, origin or wanted, inner)


def _scalar(value: Any, wanted: type[Any]) -> Any:
    if wanted is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if type(value) is not wanted:
        raise _Unfit(value, _SCALARS[wanted])
    if wanted is float and not math.isfinite(value):
        raise _Unfit(value, "a finite number")
    return value


def _one_that_fits(value: Any, options: Sequence[Any]) -> Any:
    problems = []
    for option in options:
        try:
            return _fitted(value, option)
        except _Unfit as problem:
            problems.append(problem)
    deeper = [problem for problem in problems if problem.where]
    if len(deeper) == 1:
        raise deeper[0]
    raise _Unfit(value, " or ".join(dict.fromkeys(problem.wanted for problem in problems)))


def _collection(value: Any, kind: Any, inner: tuple[Any, ...]) -> Any:
    if not isinstance(kind, type):
        raise _Unfit(value, f"something that no file can say ({kind})")
    if issubclass(kind, Mapping):
        if not isinstance(value, Mapping):
            raise _Unfit(value, "a mapping")
        keys, values = inner or (Any, Any)
        return {_fitted(key, keys): _below(each, values, f".{key}") for key, each in value.items()}
    if not issubclass(kind, (Sequence, Set)):
        raise _Unfit(value, f"something that no file can say ({kind.__name__})")
    if not isinstance(value, list):
        raise _Unfit(value, "a list")
    if kind is tuple and inner and inner[-1] is not Ellipsis:
        if len(value) != len(inner):
            raise _Unfit(value, f"a list of {len(inner)}")
        return tuple(_below(each, hint, f"[{n}]") for n, (each, hint) in enumerate(zip(value, inner, strict=True)))
    items = [_below(each, inner[0] if inner else Any, f"[{number}]") for number, each in enumerate(value)]
    if kind is tuple:
        return tuple(items)
    return frozenset(items) if issubclass(kind, Set) else items


def _below(value: Any, wanted: Any, where: str) -> Any:
    try:
        return _fitted(value, wanted)
    except _Unfit as problem:
        raise _Unfit(problem.value, problem.wanted, where + problem.where) from None


def _one_of(values: Sequence[Any]) -> str:
    return f"one of: {', '.join(str(value) for value in values)}"
