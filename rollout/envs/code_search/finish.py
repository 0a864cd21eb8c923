"""`localization_finish`: the finish tool of code search, whose answer is a list of places in the repository."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from rollout.tools.finish import FinishTool
from rollout.tools.schema import ParameterSchema, ToolSchema

__all__ = ["LocalizationFinish"]

_OPTIONAL = ("class_name", "function_name")
_ITEM = {
    "type": "object",
    "properties": {
        "file": {"type": "string", "description": "Path of the file, relative to the repository."},
        "class_name": {"type": "string", "description": "Name of the class, if the place is in one."},
        "function_name": {"type": "string", "description": "Name of the function or method, without its class."},
    },
    "required": ["file"],
}


class LocalizationFinish(FinishTool):
    """Takes the places that the model found. An empty list is an answer too, and so is a place that is not there: what
    such an answer is worth is for reward functions to say."""

    default_schema: ClassVar[ToolSchema] = ToolSchema(
        name="localization_finish",
        description="Hands over the places that must change and ends the search. Call it once, alone, at the end.",
        parameters={"locations": ParameterSchema("array", "The places.", extra={"items": _ITEM})},
        required=("locations",),
    )

    def problem(self, arguments: Mapping[str, Any]) -> str | None:
        found = (_problem(each, f"locations[{index}]") for index, each in enumerate(arguments["locations"]))
        return next((problem for problem in found if problem is not None), None)


def _problem(location: Any, where: str) -> str | None:
    if not isinstance(location, dict):
        return f'{where} must be an object with "file"'
    if not isinstance(location.get("file"), str):
        return f'"{where}.file" must be the path of a file'
    for name in _OPTIONAL:
        if not isinstance(location.get(name, ""), str | None):
            return f'"{where}.{name}" must be a string, or left out'
    return None
