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

`final_answer`, FastContext's:

    <final_answer>
    src/a.py:10-25 (parses the header)
    src/b.py:7
    </final_answer>

Lines count from 1, and both ends belong to a span. A path without lines names the file alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Literal, TypedDict

from rollout.rewards.base import Sample
from rollout.rewards.localization.answer import (
    MAX_LINE,
    Answer,
    LineSpan,
    Location,
    between,
    entity_id,
    final_message,
    said,
    strip_dot_slash,
)
from rollout.rewards.localization.finish import finished_locations, parse_structured

_INIT = ".__init__"
_SPAN = re.compile(r"L?(\d{1,10})(?:\s*-\s*L?(\d{1,10}))?")
_SPANS = re.compile(r"L?\d")
"""Beginning of the text after a path's colon by which it means lines."""
_BULLET = re.compile(r"(?:[-*•]|\d{1,4}[.)])\s+")


def parse_code_block(
    text: str, *, drop_init: bool = False, bare_files: bool = False, normalise: bool = False
) -> Answer:
    """Files are those with a function; modules and entities come from the functions alone.

    `drop_init`: `Class.__init__` names the class `Class`, so that the truth's `Class.__init__` can never be met, as in
    the first generation. `bare_files`: a path without any function counts as a file; otherwise a list of paths alone
    names nothing. `normalise` drops a leading `./` of a path.
    """
    located = list(_locations(text, normalise))
    functions = [location for location in located if location.function_name is not None]
    entities = {_entity(location, drop_init) for location in functions}
    return Answer(
        found=bool(located),
        files=frozenset(location.file for location in (located if bare_files else functions)),
        modules=frozenset(_module(entity) for entity in entities),
        entities=frozenset(entities),
    )


def _locations(text: str, normalise: bool) -> Iterator[Location]:
    """A location without function for each path, and one for each function that has a path before it and a name."""
    path, current_class = "", None
    for line in map(str.strip, text.strip("` \n").strip().split("\n")):
        if not line:
            current_class = None
        elif line.endswith(".py"):
            path, current_class = strip_dot_slash(line) if normalise else line, None
            if path:
                yield Location(path)
        elif line.startswith("class:"):
            current_class = line.removeprefix("class:").strip()
        elif line.startswith(("function:", "method:")):
            words = line.partition(":")[2].split(maxsplit=1)
            if path and words:
                yield _function(path, current_class, words[0].strip("() "))


def _function(path: str, current_class: str | None, name: str) -> Location:
    owner, dot, method = name.partition(".")
    return Location(path, owner, method) if dot else Location(path, current_class, name)


def _entity(location: Location, drop_init: bool) -> str:
    # A function's name may be empty, as of `function: ()`: it stands for nothing that exists, and is kept as such.
    entity = entity_id(location) or f"{location.file}:{location.class_name or ''}{'.' if location.class_name else ''}"
    return entity.removesuffix(_INIT) if drop_init else entity


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
        listed: list[Any] = json.loads(inner)
    except (ValueError, RecursionError):
        return Answer(found=True)
    texts = all(isinstance(each, str) for each in listed)
    return Answer(found=True, files=_paths(listed, normalise) if texts else frozenset())


def _paths(paths: list[str], normalise: bool) -> frozenset[str]:
    return frozenset(strip_dot_slash(path) for path in paths) if normalise else frozenset(paths)


def parse_final_answer(text: str, *, normalise: bool = True) -> Answer:
    """`<final_answer>`: `path:first-last (note)` a line; several spans of a file may stand behind commas.

    Bullets, backticks and notes are ignored. A span that is none is left out, with its file kept. Time is linear in the
    text.
    """
    inner = between(text, "<final_answer>", "</final_answer>")
    if inner is None:
        return Answer()
    files: set[str] = set()
    spans: list[LineSpan] = []
    for line in inner.split("\n"):
        path, numbers = _split(line)
        if not path:
            continue
        path = strip_dot_slash(path) if normalise else path
        files.add(path)
        spans += [span for number in numbers if (span := _span(path, number)) is not None]
    return Answer(found=True, files=frozenset(files), lines=tuple(spans))


def _split(line: str) -> tuple[str, list[str]]:
    """(path, spans as text) of a line."""
    line = line.strip()
    if (bullet := _BULLET.match(line)) is not None:
        line = line[bullet.end() :]
    if line.endswith(")"):
        line = line.partition(" (")[0]
    line = line.strip(" \t`")
    path, colon, rest = line.rpartition(":")
    rest = rest.strip()
    if not (colon and _SPANS.match(rest)):
        return line, []
    return path.strip(" \t`"), [part.strip() for part in rest.split(",")]


def _span(path: str, text: str) -> LineSpan | None:
    match = _SPAN.fullmatch(text)
    if match is None:
        return None
    first, last = int(match[1]), int(match[2] or match[1])
    return LineSpan(path, first, last) if 1 <= first <= last <= MAX_LINE else None


Dialect = Literal["files", "code_block", "finish", "final_answer"]
"""The form of an answer; that of `finish` is a call of a tool, and not text."""
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
            flags = {"drop_init": generation == "main", "bare_files": how.get("bare_files", False), "normalise": drop}
            return parse_code_block(final_message(sample), **flags)
        case "finish":
            locations = finished_locations(sample, check_last_step=how.get("check_last_step", True))
            return Answer() if locations is None else parse_structured(locations, normalise=drop)
