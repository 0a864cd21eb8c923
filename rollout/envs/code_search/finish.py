"""`localization_finish`: the finish tool of code search, whose answer is a list of places in the repository."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from rollout.tools.finish import FinishTool
from rollout.tools.schema import ParameterSchema, ToolSchema

_ITEM = {
    "type": "object",
    "properties": {
        "file": {"type": "string", "description": "Path of the file, relative to the repository."},
        "class_name": {"type": "string", "description": "Name of the class, if the place is in one."},
        "function_name": {"type": "string", "description": "Name of the function or method, without its class."},
    },
    "required": ["file"],
}


class _LocationsSchema(ToolSchema):
    """A name that is null is left out, which models write too."""

    def problem(self, arguments: Mapping[str, Any]) -> str | None:
        places = arguments.get("locations")
        if isinstance(places, list):
            arguments = {**arguments, "locations": [_named(place) for place in places]}
        return super().problem(arguments)


class LocalizationFinish(FinishTool):
    """Takes the places that the model found. An empty list is an answer too, and so is a place that is not there: what
    such an answer is worth is for reward functions to say."""

    default_schema: ClassVar[ToolSchema] = _LocationsSchema(
        name="localization_finish",
        description="Submits the places that must change and ends the search. Call it once, alone, at the end.",
        parameters={"locations": ParameterSchema("array", "The places.", extra={"items": _ITEM})},
        required=("locations",),
    )


def _named(place: Any) -> Any:
    return {name: value for name, value in place.items() if value is not None} if isinstance(place, dict) else place
