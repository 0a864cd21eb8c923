"""Arguments of functions out of a file: their names, types and values, against the function's signature. Pure.

Pydantic checks the values in its strict mode. Nothing is converted but what loses nothing: an int where a float is
wanted, a list where a tuple or a set is, a text where an enum's value is. What is annotated `Any`, or not at all, takes
everything. `**name: Unpack[T]` of a TypedDict stands for its keys.
"""

from __future__ import annotations

import difflib
import inspect
import json
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pydantic
from pydantic_core import ErrorDetails

from fairbox.errors import ConfigError

_STRICT = pydantic.ConfigDict(strict=True, allow_inf_nan=False)


@dataclass(frozen=True, slots=True)
class Argument:
    """An argument that a file may give."""

    wanted: Any
    """Its annotation; Any if there is none."""
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
    return {key: _fitted(value, known[key].wanted, f"{path}.{key}") for key, value in given.items()}


def _hint(key: str, known: list[str]) -> str:
    if not known:
        return "it has none"
    near = difflib.get_close_matches(key, known, n=1)
    return f"did you mean {near[0]}?" if near else f"has: {', '.join(known)}"


def _fitted(value: Any, wanted: Any, path: str) -> Any:
    """`value` as the annotation `wanted` has it."""
    if wanted is Any:
        return value
    try:
        # As JSON, which has lists where Python has tuples and sets, and texts for the values of enums.
        return pydantic.TypeAdapter(wanted, config=_STRICT).validate_json(json.dumps(value))
    except pydantic.ValidationError as error:
        problems = [(_place(value, problem["loc"]), _wanted(problem)) for problem in error.errors()]
        (where, shown), _ = problems[0]
        said = " or ".join(dict.fromkeys(text for (at, _), text in problems if at == where))
        raise ConfigError(f"{path}{where} is {shown!r}, must be {said}") from None
    except (pydantic.PydanticUserError, TypeError):
        raise ConfigError(f"{path} is annotated {wanted}, which no file can say") from None


def _wanted(problem: ErrorDetails) -> str:
    """Follows "must be"."""
    if problem["type"] == "missing":
        return f"complete: {problem['loc'][-1]} is missing"
    return problem["msg"].removeprefix("Input should be ")


def _place(value: Any, loc: tuple[int | str, ...]) -> tuple[str, Any]:
    """Returns the path of what is wrong, and its value. Other parts of `loc` name the members of a union."""
    where = ""
    for part in loc:
        if isinstance(value, list) and isinstance(part, int) and part < len(value):
            where, value = f"{where}[{part}]", value[part]
        elif isinstance(value, dict) and part in value:
            where, value = f"{where}.{part}", value[part]
    return where, value
