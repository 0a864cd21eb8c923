"""What became of a function: a value or an exception, and how both travel between processes.

Invariants: whatever a function does, calling it gives an outcome; an exception that can't travel as itself, or that
would do harm where it is raised, becomes a `FunctionFailed` that tells of it.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from limiter.pool.errors import FunctionFailed

__all__ = ["Outcome", "call"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """`value`, or `error` when it is set."""

    value: Any = None
    error: BaseException | None = None

    def get(self) -> Any:
        """The value; raises the error."""
        if self.error is not None:
            raise self.error
        return self.value


def call(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Outcome:
    """Calls the function. The frames of an exception begin with the function's own."""
    try:
        return Outcome(function(*args, **kwargs))
    except BaseException as error:
        error.__traceback__ = error.__traceback__.tb_next if error.__traceback__ is not None else None
        return Outcome(error=presentable(error))


def presentable(error: BaseException) -> BaseException:
    """The error, or a FunctionFailed for one that can't be raised in a coroutine or would end the program there."""
    if isinstance(error, Exception) and not isinstance(error, StopIteration | StopAsyncIteration):
        return error
    failed = FunctionFailed(f"the function raised {type(error).__name__}: {error}")
    failed.add_note(traceback_of(error))
    return failed


def traceback_of(error: BaseException) -> str:
    """The traceback as text."""
    return "".join(traceback.format_exception(error)).rstrip()
