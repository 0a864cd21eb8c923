"""What Ray says of a failure, in one line."""

from __future__ import annotations

__all__ = ["ray_sentence"]


def ray_sentence(error: BaseException) -> str:
    """The line of what Ray says, which is pages long, that says most, and the error's kind."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    # Of an exception in the worker the last line says which.
    line = (lines[-1] if type(error).__name__.startswith("RayTaskError") else lines[0]) if lines else ""
    return f"{type(error).__name__}: {line}" if line else type(error).__name__
