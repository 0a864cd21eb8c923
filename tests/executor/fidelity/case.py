"""One program of the fidelity tables, and what is known to differ."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from executor_service import InputFile


@dataclass(frozen=True, slots=True)
class Case:
    """A program that is run through the executor and as a plain `python main.py`: same output, same ending."""

    name: str
    source: str
    stdin: bytes = b""
    args: tuple[str, ...] = ()
    files: tuple[InputFile, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    ignore: str = ""
    """A regular expression; what it matches is taken out of both outputs, because it may differ."""
    needs: str = ""
    """A package that the interpreter must have."""
    unlike_landlock: str = ""
    """Reason why it can't be the same at level `landlock`; empty: it is the same there."""


def programs(table: str) -> list[Case]:
    """The cases of a text that has a line `=== name` above each program."""
    parts = (part.partition("\n") for part in table.split("\n=== ")[1:])
    return [Case(name, source.rstrip("\n") + "\n") for name, _, source in parts]
