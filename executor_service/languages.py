"""The languages that programs may be written in: each one small declarative entry.

Invariants: an entry says everything about a language; nothing else in fairbox tests for a language's name. Only what is
declared here is offered, and of that only what answers its probe inside the sandbox when the server starts.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["LANGUAGES", "PYTHON", "PYTHON_BASE", "PYTHON_SCIENCE", "LanguageSpec"]

PYTHON_BASE = "python-base"
"""Runtime profile: the configured interpreter with the common modules of the standard library loaded."""
PYTHON_SCIENCE = "python-science"
"""Runtime profile: with the packages for numbers, tables, formulas and figures as well."""

PYTHON = "{python}"
"""Stands for the configured interpreter in the commands of an entry."""


@dataclass(frozen=True, slots=True)
class LanguageSpec:
    """How programs of one language are run. Commands are absolute."""

    name: str
    """As requests call it."""
    file_name: str
    """The program's file in the work folder."""
    run: tuple[str, ...]
    """Command that runs it; the request's arguments follow."""
    probe: tuple[str, ...]
    """Command that succeeds where the language is installed, and says its version on its first line."""
    profile: str = ""
    """Runtime profile that serves it; empty: none, the command is simply started."""

    def command(self, words: tuple[str, ...], python: str) -> list[str]:
        """`words` with the interpreter filled in."""
        return [python if word == PYTHON else word for word in words]


LANGUAGES: dict[str, LanguageSpec] = {
    spec.name: spec
    for spec in (
        LanguageSpec("bash", "main.sh", run=("/bin/bash", "main.sh"), probe=("/bin/bash", "--version")),
        LanguageSpec("python", "main.py", run=(PYTHON, "main.py"), probe=(PYTHON, "--version"), profile=PYTHON_BASE),
    )
}
