"""A tool's signature, in the form of OpenAI's function schemas, and the check of arguments against it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["ParameterSchema", "ToolSchema"]

_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
}


@dataclass(frozen=True, slots=True)
class ParameterSchema:
    """One parameter of a tool."""

    type: str
    """One of JSON schema's: string, integer, number, boolean, array, object."""
    description: str
    enum: tuple[Any, ...] | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Further keywords of JSON schema (`items`, `minimum`, ...): shown to the model, not checked."""

    def __post_init__(self) -> None:
        assert self.type in _TYPES

    def accepts(self, value: Any) -> bool:
        """Whether a JSON value has this type and, where there is one, is in the enumeration."""
        if isinstance(value, bool) and self.type != "boolean":
            return False
        return isinstance(value, _TYPES[self.type]) and (self.enum is None or value in self.enum)


@dataclass(frozen=True, slots=True)
class ToolSchema:
    """Name, purpose and parameters of a tool."""

    name: str
    description: str
    parameters: Mapping[str, ParameterSchema] = field(default_factory=dict)
    required: tuple[str, ...] = ()

    def openai(self) -> dict[str, Any]:
        """As chat templates and OpenAI-compatible servers take it."""
        properties = {name: _property(parameter) for name, parameter in self.parameters.items()}
        parameters = {"type": "object", "properties": properties, "required": list(self.required)}
        function = {"name": self.name, "description": self.description, "parameters": parameters, "strict": False}
        return {"type": "function", "function": function}

    def problem(self, arguments: Mapping[str, Any]) -> str | None:
        """What is wrong with the arguments, for the model; None when nothing is. Unknown ones are tolerated."""
        for name in self.required:
            if name not in arguments:
                return f'the argument "{name}" is missing'
        for name, value in arguments.items():
            parameter = self.parameters.get(name)
            if parameter is not None and not parameter.accepts(value):
                allowed = parameter.type if parameter.enum is None else f"one of {', '.join(map(str, parameter.enum))}"
                return f'the argument "{name}" must be {allowed}'
        return None


def _property(parameter: ParameterSchema) -> dict[str, Any]:
    described = {"description": parameter.description} if parameter.description else {}
    enum = {} if parameter.enum is None else {"enum": list(parameter.enum)}
    return {"type": parameter.type, **described, **enum, **parameter.extra}
