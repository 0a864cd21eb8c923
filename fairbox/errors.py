"""Errors that end in one clear sentence for the person or program that caused them.

Every error a user can cause derives from `FairboxError` and its text is complete: what was wrong, with which value,
and what is allowed. Entry points print that text and exit; they never print a traceback for one of these.
"""

from __future__ import annotations

from dataclasses import dataclass

EXIT_FAILURE = 1
"""The program could not do its job; one sentence on stderr says why."""
EXIT_USAGE = 2
"""A flag, a file or a setting was wrong; nothing was started. The value argparse uses."""
EXIT_INTERRUPTED = 130
"""Ended by Ctrl-C: 128 + SIGINT, as shells report it."""


_SHOWN = 100
"""Characters of a value that a sentence repeats."""


def shown(value: str) -> str:
    """`value` in quotes as an error repeats it: of a long one the beginning."""
    return repr(value) if len(value) <= _SHOWN else f"{value[:_SHOWN]!r}... ({len(value)} characters)"


class FairboxError(Exception):
    """Base of every error whose text is written for the user."""

    exit_code = EXIT_FAILURE


class ConfigError(FairboxError):
    """A setting is unknown, has a bad value, or contradicts another one. The text starts with the setting's path."""

    exit_code = EXIT_USAGE


@dataclass(frozen=True, slots=True)
class FieldError:
    """One field of a request or a file that is not acceptable."""

    field: str
    """Path of the field as the caller wrote it, e.g. `limits.wall_time` or `files[2].path`."""
    problem: str
    """The value and what is allowed, e.g. `is -1, must be between 0.01 and 600 seconds`."""

    def __str__(self) -> str:
        return f"{self.field} {self.problem}"


class FieldErrors(FairboxError):
    """Every field of one input that is not acceptable, found before any work was done."""

    exit_code = EXIT_USAGE

    def __init__(self, errors: list[FieldError]) -> None:
        assert errors
        self.errors = tuple(errors)
        super().__init__("; ".join(str(error) for error in errors))
