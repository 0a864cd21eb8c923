"""The dialect of a code block with a path, its classes and its functions. Pure; time is linear in the text.

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

from collections.abc import Iterator
from dataclasses import dataclass

from rollout.rewards.localization.answer import Answer, Location, Problems, entity_id, strip_dot_slash

__all__ = ["CodeBlockQuirks", "parse_code_block"]

_INIT = ".__init__"


@dataclass(frozen=True, slots=True)
class CodeBlockQuirks:
    """Where the two generations of the dialect differ, and what neither does but a recipe may want."""

    drop_init: bool = False
    """`Class.__init__` names the class `Class`, so that the truth's `Class.__init__` can never be met: the first
    generation does this."""
    bare_files: bool = False
    """A path without any function counts as a file; otherwise a list of paths alone names nothing."""
    normalise: bool = False
    """A leading `./` of a path is dropped."""
    any_suffix: bool = False
    """A line without spaces and colons that has a dot or a slash is a path too; otherwise only `.py` files can be
    named."""


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
        elif _is_path(line, quirks):
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


def _is_path(line: str, quirks: CodeBlockQuirks) -> bool:
    if line.endswith(".py"):
        return True
    return quirks.any_suffix and not any(mark in line for mark in " :`") and any(mark in line for mark in "./")
