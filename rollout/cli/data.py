"""`fairbox data SUBCOMMAND`: makes and checks files of rows. Each subcommand is imported only when it is called."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

from fairbox.errors import EXIT_USAGE

__all__ = ["main"]

_COMMANDS = {
    "gsm8k": ("rollout.cli.data_gsm8k", "GSM8K as verl's rows, with or without its reward as a tool"),
    "swebench": ("rollout.cli.data_swebench", "code search tasks of SWE-bench, SWE-Gym, SWE-smith and their like"),
    "mine": ("rollout.cli.data_mine", "code search tasks of a repository's history, or of two releases"),
    "repos": ("rollout.cli.data_repos", "fetch the repositories that rows need, each commit once"),
    "check": ("rollout.cli.data_check", "compare the truths of code search rows with their sources"),
}


def main(argv: Sequence[str]) -> int:
    """Entry point; returns the exit code of the subcommand."""
    words = list(argv)
    if not words or words[0] in ("-h", "--help", "help"):
        print(_usage())
        return 0 if words else EXIT_USAGE
    command = words.pop(0)
    if command not in _COMMANDS:
        print(f"fairbox data: {command!r} is not a subcommand; there are: {', '.join(_COMMANDS)}", file=sys.stderr)
        return EXIT_USAGE
    code: int = importlib.import_module(_COMMANDS[command][0]).main(words)
    return code


def _usage() -> str:
    lines = ["usage: fairbox data SUBCOMMAND [--name VALUE | name=VALUE ...]", "", "subcommands:"]
    lines += [f"  {name:<14} {text}" for name, (_, text) in _COMMANDS.items()]
    return "\n".join([*lines, "", "`fairbox data SUBCOMMAND --help` lists the settings of a subcommand."])
