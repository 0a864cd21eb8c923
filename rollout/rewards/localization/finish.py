"""The structured dialect: a finish tool whose argument lists places, and whether its use was in order. Pure.

    {"name": "localization_finish", "arguments": {"locations": [
        {"file": "src/a.py", "class_name": "Parser", "function_name": "parse"}, {"file": "src/b.py"}]}}

The call counts when the trajectory makes it exactly once, alone, as the end of its last turn. The records of the
calls decide that; the turn's text only shows what follows the call.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from rollout.loop.limits import StopReason
from rollout.rewards.base import Sample
from rollout.rewards.localization.answer import (
    Answer,
    Location,
    entity_id,
    last_turn,
    module_id,
    present,
    strip_dot_slash,
)
from rollout.tools.formats.calls import ToolCall
from rollout.tools.formats.marked import parse_tool_calls

FINISH_TOOL = "localization_finish"
_AFTER = re.compile(r"\s*(?:</[\w:=-]{1,40}>\s*|<\|[\w:=-]{1,40}\|>\s*)*")
"""Text that may follow a call: the marks that close it, in whatever format, and white space."""


def read_locations(arguments: Mapping[str, Any] | None) -> tuple[Location, ...] | None:
    """The places in a call's arguments; None if the finish tool would refuse them.

    `locations` is a list of objects with `file`, a text, and `class_name` and `function_name`, texts or null; further
    keys are ignored.
    """
    listed = None if arguments is None else arguments.get("locations")
    if not isinstance(listed, list):
        return None
    found = []
    for each in listed:
        if not isinstance(each, Mapping):
            return None
        file, class_name, function_name = (each.get(key) for key in ("file", "class_name", "function_name"))
        if not isinstance(file, str) or not all(isinstance(n, str | None) for n in (class_name, function_name)):
            return None
        found.append(Location(file, class_name or None, function_name or None))
    return tuple(found)


def parse_structured(locations: tuple[Location, ...], *, normalise: bool = False) -> Answer:
    """Files of all places; modules and entities of those that name a class or a function.

    One place without a file makes the whole answer empty, as the reference has it. Duplicates count once.
    """
    if any(not location.file.strip() for location in locations):
        return Answer(found=True)
    if normalise:
        locations = tuple(
            Location(strip_dot_slash(each.file), each.class_name, each.function_name) for each in locations
        )
    return Answer(
        found=True,
        files=frozenset(location.file for location in locations),
        modules=present(map(module_id, locations)),
        entities=present(map(entity_id, locations)),
    )


def finished_locations(sample: Sample, *, check_last_step: bool = True) -> tuple[Location, ...] | None:
    """The places; None if the finish tool was not used, or not as it must be."""
    calls = [read_locations(arguments) for name, arguments, _, _ in _calls(sample, sample.text) if name == FINISH_TOOL]
    valid = [locations for locations in calls if locations is not None]
    if len(valid) != 1 or (check_last_step and not _ends_by_it(sample)):
        return None
    return valid[0]


def _calls(sample: Sample, text: str) -> list[tuple[str, Mapping[str, Any] | None, str, int]]:
    """(tool, arguments, text, turn) of each call; of a text alone those that it holds in the format of Hermes."""
    if sample.tool_calls or sample.trajectory_id:
        return [(call.name, call.arguments, call.raw, call.turn) for call in sample.tool_calls]
    return [
        (call.name, call.arguments if isinstance(call, ToolCall) else None, call.raw, sample.turns)
        for call in parse_tool_calls(text)
    ]


def _ends_by_it(sample: Sample) -> bool:
    """Says whether the last turn ends by itself with one call, of the finish tool, and nothing else."""
    text = last_turn(sample)
    last = [(name, raw) for name, _, raw, turn in _calls(sample, text) if turn == sample.turns]
    if sample.stop_reason not in (None, StopReason.ANSWERED) or len(last) != 1:
        return False
    name, raw = last[0]
    return name == FINISH_TOOL and _closes(text[text.rfind(raw) + len(raw) :] if raw in text else "")


def _closes(rest: str) -> bool:
    """Says whether nothing but marks follows a call, none of them twice."""
    if _AFTER.fullmatch(rest) is None:
        return False
    marks = re.findall(r"<[^>]*>", rest)
    return len(marks) == len(set(marks))
