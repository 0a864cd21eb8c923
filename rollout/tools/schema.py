"""A tool's signature, in the form of OpenAI's function schemas, and the check of arguments against it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError

from rollout.tools.text import cut_text

TYPES = ("string", "integer", "number", "boolean", "array", "object")
"""JSON schema's, but null, which is no argument."""
_MOST_CHARS = 300
"""Most characters of the problem of an argument, which may quote it."""


@dataclass(frozen=True, slots=True)
class ParameterSchema:
    """One parameter of a tool."""

    type: str
    """One of JSON schema's: string, integer, number, boolean, array, object."""
    description: str
    enum: tuple[Any, ...] | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Further keywords of JSON schema: `items`, `minimum`, ..."""

    def __post_init__(self) -> None:
        assert self.type in TYPES

    def tree(self) -> dict[str, Any]:
        """The parameter as JSON schema."""
        described = {"description": self.description} if self.description else {}
        enum = {} if self.enum is None else {"enum": list(self.enum)}
        return {"type": self.type, **described, **enum, **self.extra}


@dataclass(frozen=True, slots=True)
class ToolSchema:
    """Name, purpose and parameters of a tool."""

    name: str
    description: str
    parameters: Mapping[str, ParameterSchema] = field(default_factory=dict)
    required: tuple[str, ...] = ()
    _checks: Mapping[str, Draft202012Validator] = field(init=False, repr=False, compare=False)
    """Validator of each parameter, made once: making them takes ten times as long as asking them."""

    def __post_init__(self) -> None:
        checks = {name: Draft202012Validator(tree) for name, tree in self._properties().items()}
        object.__setattr__(self, "_checks", checks)

    def openai(self) -> dict[str, Any]:
        """As chat templates and OpenAI-compatible servers take it."""
        parameters = {"type": "object", "properties": self._properties(), "required": list(self.required)}
        function = {"name": self.name, "description": self.description, "parameters": parameters, "strict": False}
        return {"type": "function", "function": function}

    def problem(self, arguments: Mapping[str, Any]) -> str | None:
        """Says what is wrong with the arguments, for the model; None if nothing is. Unknown ones are tolerated."""
        missing = next((name for name in self.required if name not in arguments), None)
        if missing is not None:
            return _missing(missing)
        for name, check in self._checks.items():
            if name in arguments and (error := next(check.iter_errors(arguments[name]), None)) is not None:
                return _sentence(name, error)
        return None

    def _properties(self) -> dict[str, Any]:
        return {name: parameter.tree() for name, parameter in self.parameters.items()}


def _missing(name: str) -> str:
    return f'the argument "{name}" is missing'


def _sentence(name: str, error: ValidationError) -> str:
    place, allowed = name + error.json_path.removeprefix("$"), cast("Any", error.validator_value)
    match error.validator:
        case "required":
            given = cast("Any", error.instance)
            return _missing(f"{place}.{next(each for each in allowed if each not in given)}")
        case "type":
            return f'the argument "{place}" must be {allowed if isinstance(allowed, str) else " or ".join(allowed)}'
        case "enum":
            return f'the argument "{place}" must be one of {", ".join(map(str, allowed))}'
    return f'the argument "{place}" is wrong: {cut_text(error.message, _MOST_CHARS)[0]}'
