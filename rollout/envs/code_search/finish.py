"""`localization_finish`: the finish tool of code search, whose answer is a list of places in the repository."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from rollout.tools.finish import FinishTool
from rollout.tools.schema import ParameterSchema, ToolSchema

__all__ = ["MAX_LOCATIONS", "LocalizationFinish"]

MAX_LOCATIONS = 200
"""More places than any change of the known data sets has; a longer list is a listing of the repository."""
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
    """Takes the places that the model found. An empty list is an answer too."""

    default_schema: ClassVar[ToolSchema] = ToolSchema(
        name="localization_finish",
        description="Hands over the places that must change and ends the search. Call it once, alone, at the end.",
        parameters={"locations": ParameterSchema("array", "The places.", extra={"items": _ITEM})},
        required=("locations",),
    )

    def problem(self, arguments: Mapping[str, Any]) -> str | None:
        locations = arguments["locations"]
        if len(locations) > MAX_LOCATIONS:
            return f'"locations" has {len(locations)} places, at most {MAX_LOCATIONS} are allowed'
        found = (_problem(location, f"locations[{index}]") for index, location in enumerate(locations))
        return next((problem for problem in found if problem is not None), None)


def _problem(location: Any, where: str) -> str | None:
    if not isinstance(location, dict):
        return f'{where} must be an object with "file"'
    if not isinstance(location.get("file"), str) or not location["file"].strip():
        return f'"{where}.file" must be the path of a file'
    for name in _OPTIONAL:
        if not isinstance(location.get(name, ""), str | None):
            return f'"{where}.{name}" must be a string, or left out'
    return None
