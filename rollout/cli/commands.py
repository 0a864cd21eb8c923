"""Tables of commands: a word, the module that has its `main(argv)`, and what it does. Each is imported when it is
called, so that none pays for another."""

from __future__ import annotations

import difflib
import importlib
import sys
from collections.abc import Collection, Mapping, Sequence
from itertools import takewhile
from pathlib import Path

from fairbox.errors import EXIT_USAGE

Commands = Mapping[str, tuple[str, str]]
"""Word -> (module, what it does)."""


def call(prog: str, commands: Commands, argv: Sequence[str], *, kind: str) -> int:
    """Calls the command that the first word names with the others; its exit code. `kind` is what a command is called
    in texts. Raises what the command raises."""
    words = list(argv)
    if not words or words[0] in ("-h", "--help", "help"):
        print(_usage(prog, commands, kind))
        return 0 if words else EXIT_USAGE
    word = words.pop(0)
    if word not in commands:
        near = difflib.get_close_matches(word, commands, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are: {', '.join(commands)}"
        print(f"{prog}: {word!r} is not a {kind}; {hint}", file=sys.stderr)
        return EXIT_USAGE
    code: int = importlib.import_module(commands[word][0]).main(words)
    return code


def with_first(argv: Sequence[str], setting: str, *, flags: Collection[str] = ()) -> list[str]:
    """The first word, if it is no setting, is the value of this one. `flags` before it are words without a value."""
    words = list(argv)
    before = list(takewhile(lambda word: word in flags, words))
    words = words[len(before) :] + before
    if words and not words[0].startswith("-") and ("=" not in words[0] or Path(words[0]).exists()):
        words[0] = f"{setting}={words[0]}"
    return words


def _usage(prog: str, commands: Commands, kind: str) -> str:
    lines = [f"usage: {prog} {kind.upper()} [--name VALUE | name=VALUE ...]", "", f"{kind}s:"]
    lines += [f"  {name:<14} {text}" for name, (_, text) in commands.items()]
    lines += ["", f"`{prog} {kind.upper()} --help` lists the settings of a {kind}."]
    return "\n".join([*lines, f"`{prog} --version` says which version it is."] if kind == "command" else lines)
