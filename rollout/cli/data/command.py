"""`fairbox data SUBCOMMAND`: makes files of rows."""

from __future__ import annotations

from collections.abc import Sequence

from rollout.cli.commands import Commands, call

_COMMANDS: Commands = {
    "gsm8k": ("rollout.cli.data.gsm8k", "GSM8K as verl's rows, with or without its reward as a tool"),
    "code": ("rollout.cli.data.code", "programming problems of LiveCodeBench, CodeContests, TACO and their like"),
    "swebench": ("rollout.cli.data.swebench", "code search tasks of SWE-bench, SWE-Gym, SWE-smith and their like"),
    "mine": ("rollout.cli.data.mine", "code search tasks of a repository's history"),
    "repos": ("rollout.cli.data.repos", "fetch the repositories that rows need, each commit once"),
}


def main(argv: Sequence[str]) -> int:
    """Entry point; returns the exit code of the subcommand."""
    return call("fairbox data", _COMMANDS, argv, kind="subcommand")
