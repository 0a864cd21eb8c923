"""What a judge of completions is: it makes prompts of rows, and of a completion the programs that decide. Pure.

Rows come with the request (`config.provided_data`); a row that a judge can't work with is a BadRequest that names the
column. Nothing here runs anything.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from executor_service.gateway.errors import BadRequest
from executor_service.gateway.extraction import CodeBlock
from executor_service.gateway.schemas import RunCodeRequest, SubmitRequest, TestConfig

__all__ = ["Case", "Judge", "Row", "Submission", "column", "row_of", "rows_of", "structure", "text_of"]

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Case:
    """One program to run. It passes when it succeeds and, where that is asked for, prints the right thing."""

    request: RunCodeRequest
    expected_stdout: str | None = None
    """None: anything."""
    must_print: str = ""
    """A secret that only a program that ran to its end can print."""
    info: Row | None = None


@dataclass(frozen=True, slots=True)
class Submission:
    """How a completion is judged: it is accepted when all cases pass."""

    code: str
    cases: tuple[Case, ...]
    full_code: str | None = None
    run_all: bool = False
    """Go on after the first case that fails."""
    full_info: bool = False
    """Repeat inputs and outputs of cases that pass in full."""
    extra: Row | None = field(default=None)


class Judge(Protocol):
    """One way to judge; SandboxFusion calls these dataset classes."""

    def prompt(self, row: Row, config: TestConfig) -> Row:
        """`{id, prompt, labels}`."""
        ...

    def submission(self, request: SubmitRequest, row: Row, blocks: Sequence[CodeBlock]) -> Submission:
        """`blocks` are those that the client's own logic of extraction found."""
        ...


def rows_of(config: TestConfig) -> list[Row]:
    if not config.provided_data:
        raise BadRequest("this server has no data sets of its own: give the rows in config.provided_data, a list")
    if not isinstance(config.provided_data, list):
        raise BadRequest("config.provided_data is an object, must be a list of objects here")
    return config.provided_data


def row_of(config: TestConfig) -> Row:
    if not config.provided_data:
        raise BadRequest("this server has no data sets of its own: give the row in config.provided_data, an object")
    if not isinstance(config.provided_data, dict):
        raise BadRequest("config.provided_data is a list, must be one object here")
    return config.provided_data


def column(row: Row, name: str) -> Any:
    if name not in row:
        raise BadRequest(f"config.provided_data has no {name!r}, which this judge needs")
    return row[name]


def text_of(row: Row, name: str) -> str:
    value = column(row, name)
    if not isinstance(value, str):
        raise BadRequest(f"config.provided_data: {name!r} is {type(value).__name__}, must be text")
    return value


def structure(row: Row, name: str, kind: type) -> Any:
    """A column that holds `kind` (dict or list), as it is or as JSON text."""
    value = column(row, name)
    if isinstance(value, str):
        try:
            value = json.loads(value, strict=False)
        except (ValueError, RecursionError) as error:
            raise BadRequest(f"config.provided_data: {name!r} is text that is not JSON: {error}") from None
    if not isinstance(value, kind):
        wanted = "an object" if kind is dict else "a list"
        raise BadRequest(f"config.provided_data: {name!r} is {type(value).__name__}, must be {wanted}")
    return value
