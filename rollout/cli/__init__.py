"""The console script `fairbox`. Each subcommand is imported only when it is called, so that none pays for another."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

from fairbox.errors import EXIT_USAGE, FairboxError, FieldErrors

__all__ = ["main"]

_COMMANDS = {
    "rollout": ("rollout.cli.rollout", "roll a model out on word problems with the code interpreter"),
    "up": ("rollout.cli.up", "limiter and executor on this machine, until Ctrl-C"),
    "train": ("rollout.cli.train", "train a model on the rewards of its own rollouts"),
    "exec": ("rollout.cli.exec", "run one program in the sandbox"),
    "status": ("rollout.cli.status", "what limiter and executor are doing"),
    "check-template": ("rollout.cli.check_template", "say whether a model's chat template gives exact tokens"),
    "capture": ("rollout.cli.capture", "an OpenAI-compatible endpoint that records the exact tokens of any agent"),
    "view": ("rollout.cli.view", "look at dumps: turns, tools, tokens, groups, steps"),
    "data": ("rollout.cli.data", "make and check files of rows"),
    "events": ("rollout.cli.events", "the event streams of a dump, as the OpenHands SDK has them"),
    "check-dump": ("rollout.cli.check_dump", "compare a dump's logprobs with an independent forward pass"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code. An error that a user can cause is one sentence on stderr."""
    words = list(sys.argv[1:] if argv is None else argv)
    if not words or words[0] in ("-h", "--help", "help"):
        print(_usage())
        return 0 if words else EXIT_USAGE
    command = words.pop(0)
    if command not in _COMMANDS:
        print(f"fairbox: {command!r} is not a command; there are: {', '.join(_COMMANDS)}", file=sys.stderr)
        return EXIT_USAGE
    try:
        code: int = importlib.import_module(_COMMANDS[command][0]).main(words)
    except FairboxError as error:
        lines = [str(each) for each in error.errors] if isinstance(error, FieldErrors) else [str(error)]
        print("\n".join(f"fairbox {command}: {line}" for line in lines), file=sys.stderr)
        return error.exit_code
    return code


def _usage() -> str:
    lines = ["usage: fairbox COMMAND [--name VALUE | name=VALUE ...]", "", "commands:"]
    lines += [f"  {name:<14} {text}" for name, (_, text) in _COMMANDS.items()]
    return "\n".join([*lines, "", "`fairbox COMMAND --help` lists the settings of a command."])
