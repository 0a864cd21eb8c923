"""Checks the fields of a request before anything is done, and collects everything that is wrong with them."""

from __future__ import annotations

import re
from typing import Any

import grpc.aio

from fairbox.errors import FieldError, FieldErrors, shown
from fairbox.net.grpc_errors import abort_fields

IDENTIFIER = re.compile(r"[!-~]{1,128}")
"""1 to 128 characters of visible ASCII."""
_SHORTEST_SECRET = 16


class Fields:
    """One request's fields. Ask for each value, then call `check()`, or `check_call()` in a handler."""

    def __init__(self) -> None:
        self._errors: list[FieldError] = []

    def refuse(self, field: str, problem: str) -> None:
        """Records that a field is not acceptable."""
        self._errors.append(FieldError(field, problem))

    def identifier(self, field: str, value: str, *, longest: int = 128) -> str:
        """A name of visible ASCII, from 1 to `longest` characters."""
        if len(value) > longest or not IDENTIFIER.fullmatch(value):
            self.refuse(field, f"is {shown(value)}, must be 1 to {longest} characters of visible ASCII")
        return value

    def secret(self, field: str, value: str) -> None:
        """16 to 128 characters of visible ASCII, which no message repeats."""
        if len(value) < _SHORTEST_SECRET or not IDENTIFIER.fullmatch(value):
            self.refuse(field, f"has {len(value)} characters, must have {_SHORTEST_SECRET} to 128 of visible ASCII")

    def text(self, field: str, value: str, *, longest: int) -> str:
        """Free text, at most `longest` characters."""
        if len(value) > longest:
            self.refuse(field, f"has {len(value)} characters, must have at most {longest}")
        return value

    def duration(self, field: str, value: float, *, default: float, longest: float) -> float:
        """Seconds; 0 is the default."""
        if not 0 <= value <= longest:  # NaN is refused too
            self.refuse(field, f"is {value}, must be from 0.0 to {longest} seconds, or 0 for {default}")
        return value or default

    def count(self, field: str, value: int, *, default: int, most: int) -> int:
        """A number from 1 to `most`; 0 is the default."""
        chosen = value or default
        if not 1 <= chosen <= most:
            self.refuse(field, f"is {value}, must be from 1 to {most}")
        return chosen

    def check(self) -> None:
        """Raises FieldErrors with everything that was refused."""
        if self._errors:
            raise FieldErrors(self._errors)

    async def check_call(self, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        """Ends the call with everything that was refused."""
        if self._errors:
            await abort_fields(context, FieldErrors(self._errors))
