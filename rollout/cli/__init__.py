"""The console script `fairbox`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from fairbox.errors import EXIT_FAILURE, EXIT_INTERRUPTED, FairboxError, FieldErrors
from fairbox.loading import leave
from fairbox.user_code import find_user_code, foreign_package
from fairbox.version import installed_version
from rollout.cli.commands import Commands, call

__all__ = ["main"]

_COMMANDS: Commands = {
    "rollout": ("rollout.cli.rollout", "roll a model out: trajectories with tools, scored and dumped"),
    "up": ("rollout.cli.up", "limiter and executor on this machine, until Ctrl-C"),
    "train": ("rollout.cli.train", "train a model on the rewards of its own rollouts"),
    "exec": ("rollout.cli.exec", "run one program in the sandbox"),
    "status": ("rollout.cli.status", "what limiter, executors and rollout services are doing"),
    "top": ("rollout.cli.top", "the same on one screen, again and again, with what is wrong in words"),
    "image": ("rollout.cli.executor.image", "root file systems that programs can run in: add, list, remove"),
    "mcp": ("rollout.cli.mcp", "give an agent the sandbox as tools, by the Model Context Protocol"),
    "doctor": ("rollout.cli.executor.doctor", "what this machine offers to an executor, and what changes each no"),
    "check-template": ("rollout.cli.check_template", "say whether a model's chat template gives exact tokens"),
    "capture": ("rollout.cli.capture", "an OpenAI-compatible endpoint that records the exact tokens of any agent"),
    "view": ("rollout.cli.view", "look at dumps: turns, tools, tokens, groups, steps"),
    "report": ("rollout.cli.report", "write a run as one page for a browser"),
    "data": ("rollout.cli.data.command", "make files of rows"),
    "check-env": ("rollout.cli.check_env", "say of an environment's tasks whether they are fit to train on"),
    "check-dump": ("rollout.cli.check_dump", "compare a dump's logprobs with an independent forward pass"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code. An error that a user can cause is one sentence on stderr."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words == ["--version"]:
        print(f"fairbox {installed_version()}")
        return 0
    find_user_code()
    try:
        return leave(call("fairbox", _COMMANDS, words, kind="command"))
    except KeyboardInterrupt:  # before the command has begun, or after it has ended
        return leave(EXIT_INTERRUPTED)
    except ImportError as error:
        sentence = foreign_package(error)
        if sentence is None:
            raise
        print(f"fairbox {words[0]}: {sentence}", file=sys.stderr)
        return EXIT_FAILURE
    except FairboxError as error:
        lines = [str(each) for each in error.errors] if isinstance(error, FieldErrors) else [str(error)]
        print("\n".join(f"fairbox {words[0]}: {line}" for line in lines), file=sys.stderr)
        return error.exit_code
