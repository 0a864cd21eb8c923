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
from rollout.rewards.localization.answer import Answer, Location, entity_id, module_id, present, strip_dot_slash
from rollout.rewards.localization.said import last_turn
from rollout.tools.formats.calls import MalformedCall
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
        return Answer(found=True, problems=("a location's file is blank",))
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


def finished_locations(
    sample: Sample, *, tool: str = FINISH_TOOL, check_last_step: bool = True
) -> tuple[tuple[Location, ...] | None, str | None]:
    """(places, problem): None and why, if the finish tool was not used, or not as it must be."""
    calls = [read_locations(arguments) for name, arguments in _calls(sample) if name == tool]
    valid = [locations for locations in calls if locations is not None]
    if len(valid) != 1:
        return None, f"{tool} was called {len(valid)} times with valid arguments, must be called once"
    problem = finish_problem(sample, tool=tool) if check_last_step else None
    return (valid[0], None) if problem is None else (None, problem)


def _calls(sample: Sample) -> list[tuple[str, dict[str, Any] | None]]:
    """(tool, arguments) of each call; of a text alone those that it holds in the format of Hermes."""
    if sample.tool_calls or sample.trajectory_id:
        return [(call.name, call.arguments) for call in sample.tool_calls]
    return [
        ("", None) if isinstance(call, MalformedCall) else (call.name, call.arguments)
        for call in parse_tool_calls(sample.text)
    ]


def finish_problem(sample: Sample, *, tool: str = FINISH_TOOL) -> str | None:
    """Problem of the last turn; None: it ends by itself with one call, of the finish tool, and nothing else."""
    if sample.stop_reason not in (None, StopReason.ANSWERED):
        return f"the trajectory ended by {sample.stop_reason}"
    text = last_turn(sample)
    if sample.tool_calls or sample.trajectory_id:
        last = [(call.name, call.raw) for call in sample.tool_calls if call.turn == sample.turns]
    else:
        last = [("" if isinstance(call, MalformedCall) else call.name, call.raw) for call in parse_tool_calls(text)]
    if len(last) != 1:
        return f"the last turn makes {len(last)} calls, must make one"
    name, raw = last[0]
    if name != tool:
        return f"the last turn calls {name or 'a tool that can not be told'}, must call {tool}"
    rest = text[text.rfind(raw) + len(raw) :] if raw in text else ""
    return None if _closes(rest) else f"text follows the call: {rest.strip()[:60]!r}"


def _closes(rest: str) -> bool:
    """Says whether nothing but marks follows a call, none of them twice."""
    if _AFTER.fullmatch(rest) is None:
        return False
    marks = re.findall(r"<[^>]*>", rest)
    return len(marks) == len(set(marks))
