"""Reads an answer in its dialect. Pure.

| dialect | form | read from |
| --- | --- | --- |
| `files` | `<files>`, a path a line or a JSON list | the last turn |
| `code_block` | path, `class:`, `function:` | the final message |
| `finish` | the finish tool's `locations` | the records of the calls |
| `final_answer` | `<final_answer>path:first-last (note)</final_answer>` | the last turn |

`files`:

    <files>
    src/a.py
    ./src/b.py
    </files>

`code_block`:

    ```
    src/a.py
    class: Parser
    function: parse

    src/b.py
    function: main
    ```

A line that ends in `.py` is a path, and an empty line ends a class. The fences may be missing, and everything that is
neither path, class nor function is skipped.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, TypedDict

from rollout.rewards.base import Sample
from rollout.rewards.localization.answer import Answer, Location, Problems, between, entity_id, strip_dot_slash
from rollout.rewards.localization.finish import finished_locations, parse_structured
from rollout.rewards.localization.lines import parse_final_answer
from rollout.rewards.localization.said import final_message, said

_INIT = ".__init__"


@dataclass(frozen=True, slots=True)
class CodeBlockQuirks:
    """Differences between the two generations of the dialect, and options of neither that a recipe may want."""

    drop_init: bool = False
    """`Class.__init__` names the class `Class`, so that the truth's `Class.__init__` can never be met: the first
    generation does this."""
    bare_files: bool = False
    """A path without any function counts as a file; otherwise a list of paths alone names nothing."""
    normalise: bool = False
    """A leading `./` of a path is dropped."""


def parse_code_block(text: str, quirks: CodeBlockQuirks = CodeBlockQuirks()) -> Answer:
    """Files are those with a function, unless `bare_files`; modules and entities come from the functions alone."""
    problems = Problems()
    located = list(_locations(text, quirks, problems))
    functions = [location for location in located if location.function_name is not None]
    entities = {_entity(location, quirks) for location in functions}
    return Answer(
        found=bool(located),
        files=frozenset(location.file for location in (located if quirks.bare_files else functions)),
        modules=frozenset(_module(entity) for entity in entities),
        entities=frozenset(entities),
        problems=problems.all(),
    )


def _locations(text: str, quirks: CodeBlockQuirks, problems: Problems) -> Iterator[Location]:
    """A location without function for each path, and one for each function."""
    path, current_class = "", None
    for line in map(str.strip, text.strip("` \n").strip().split("\n")):
        if not line:
            current_class = None
        elif line.endswith(".py"):
            path, current_class = strip_dot_slash(line) if quirks.normalise else line, None
            if path:
                yield Location(path)
        elif line.startswith("class:"):
            current_class = line.removeprefix("class:").strip()
        elif line.startswith(("function:", "method:")):
            words = line.partition(":")[2].split(maxsplit=1)
            if not path:
                problems.add(f"{line[:60]!r} stands before any file")
            elif not words:
                problems.add(f"{line[:60]!r} names nothing")
            else:
                yield _function(path, current_class, words[0].strip("() "))


def _function(path: str, current_class: str | None, name: str) -> Location:
    owner, dot, method = name.partition(".")
    return Location(path, owner, method) if dot else Location(path, current_class, name)


def _entity(location: Location, quirks: CodeBlockQuirks) -> str:
    # A function's name may be empty, as of `function: ()`: it stands for nothing that exists, and is kept as such.
    entity = entity_id(location) or f"{location.file}:{location.class_name or ''}{'.' if location.class_name else ''}"
    return entity.removesuffix(_INIT) if quirks.drop_init else entity


def _module(entity: str) -> str:
    """`file:Class` of `file:Class.method`; of `file:Class.Inner.method` it is `file:Class.Inner`."""
    return entity.rpartition(".")[0] if "." in entity.rpartition(":")[2] else entity


def parse_files_tag(text: str, *, normalise: bool = True) -> Answer:
    """`<files>`: one path a line, or a JSON list. The first pair of tags counts.

    `normalise` drops a leading `./`, as the verifiers environment does on both sides. A list that is no JSON, or holds
    anything but texts, names no file.
    """
    inner = between(text, "<files>", "</files>")
    if inner is None:
        return Answer()
    inner = inner.strip()
    if not inner.startswith("["):
        lines = [line.strip() for line in inner.split("\n")]
        return Answer(found=True, files=_paths([line for line in lines if line], normalise))
    try:
        listed: Any = json.loads(inner)
    except (ValueError, RecursionError) as error:
        return Answer(found=True, problems=(f"<files> holds a list that is no JSON: {error}",))
    if not isinstance(listed, list):
        return Answer(found=True, problems=(f"<files> holds {type(listed).__name__}, must hold a list of paths",))
    if wrong := [each for each in listed if not isinstance(each, str)]:
        return Answer(found=True, problems=(f"<files> holds {type(wrong[0]).__name__} among its paths",))
    return Answer(found=True, files=_paths(listed, normalise))


def _paths(paths: list[str], normalise: bool) -> frozenset[str]:
    return frozenset(strip_dot_slash(path) for path in paths) if normalise else frozenset(paths)


Dialect = Literal["files", "code_block", "finish", "final_answer"]
Generation = Literal["main", "codescout"]
"""Generation of the formulas and the code block: `main` is agentic-code-search-oss, `codescout` the later release."""

_NORMALISES = ("files", "final_answer")
"""Dialects that drop a leading `./` unless told otherwise."""


class ReadArguments(TypedDict, total=False):
    """Arguments of reward functions for reading an answer."""

    dialect: Dialect | None
    """None, the default: the function's own."""
    normalise: bool | None
    """True to drop a leading `./` of paths; None, the default: the dialect decides."""
    bare_files: bool
    """`code_block`: false by default."""
    check_last_step: bool
    """`finish`: true by default."""


def answer_of(sample: Sample, own: Dialect, how: ReadArguments, *, generation: Generation = "codescout") -> Answer:
    """The answer of a sample, in the dialect `own` unless `how` names one. `generation` decides whether a code block
    keeps `__init__`."""
    dialect, normalise = how.get("dialect") or own, how.get("normalise")
    drop = dialect in _NORMALISES if normalise is None else normalise
    match dialect:
        case "files":
            return parse_files_tag(said(sample), normalise=drop)
        case "final_answer":
            return parse_final_answer(said(sample), normalise=drop)
        case "code_block":
            quirks = CodeBlockQuirks(generation == "main", how.get("bare_files", False), drop)
            return parse_code_block(final_message(sample), quirks)
        case "finish":
            locations, problem = finished_locations(sample, check_last_step=how.get("check_last_step", True))
            if locations is None:
                return Answer(problems=(problem or "",))
            return parse_structured(locations, normalise=drop)
