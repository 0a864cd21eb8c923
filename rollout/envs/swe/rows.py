"""Rows of SWE-bench, SWE-Gym and SWE-smith: a report, an image with the repository, and the tests that decide.

Needed are `instance_id`, `repo`, `problem_statement`, `FAIL_TO_PASS` and `PASS_TO_PASS`; `test_patch`, `patch`,
`test_cmd`, and the image as `image_name`, `docker_image` or `image` may be missing. Other columns are not looked at.
Invariants: a row that can't be played as it is meant is a DataError before anything starts, by file, line, column and
value; everything of a row is bounded; no two rows of a file have one `instance_id`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollout.data.records import LONGEST_STATEMENT, DataError, read_instances
from rollout.data.swe import PatchError, parse_patch

MAX_PATCH_BYTES = 4 << 20
"""Bytes of a patch, the agent's included."""
MAX_TESTS = 50_000
"""Tests that a row names in one column."""
MAX_NAME = 4096
"""Characters of a test's name, of a command and of a short column."""
_IMAGES = ("image_name", "docker_image", "image")
_REPO = re.compile(r"[\w.-]+/[\w.-]+", re.ASCII)
_ID = re.compile(r"\w[\w.+-]*", re.ASCII)


@dataclass(frozen=True, slots=True)
class SweRow:
    """One report about one repository, and the tests that say whether it was dealt with."""

    instance_id: str
    repo: str
    """owner/name."""
    problem_statement: str
    image: str | None
    """Name of an image that the row has; None: it has none."""
    test_cmd: str | None
    test_patch: str
    """Empty if the tests are in the image."""
    patch: str
    """The row's own solution; empty if it has none."""
    fail_to_pass: tuple[str, ...]
    """Tests that fail in the image, and pass when the report is dealt with."""
    pass_to_pass: tuple[str, ...]
    """Tests that pass in the image, and must go on passing."""
    where: str
    """File and line, for error messages."""

    @property
    def named_tests(self) -> tuple[str, ...]:
        """All tests that decide."""
        return self.fail_to_pass + self.pass_to_pass


def read_swe_rows(path: Path, limit: int | None = None) -> list[SweRow]:
    """The first `limit` rows of a `.jsonl` or `.parquet` file; fewer if it has fewer. Raises DataError."""
    return read_instances(path, swe_row, limit)


def swe_row(value: Any, where: str) -> SweRow:
    """The row with these columns. Raises DataError."""
    if not isinstance(value, Mapping):
        raise DataError(f"{where}: must be an object with instance_id, repo, problem_statement and tests")
    return SweRow(
        instance_id=_matching(
            value, "instance_id", _ID, "letters, digits, _ and . + -, the first a letter, digit or _", where
        ),
        repo=_matching(value, "repo", _REPO, "owner/name", where),
        problem_statement=_needed(value, "problem_statement", where, LONGEST_STATEMENT),
        image=next((found for name in _IMAGES if (found := _text(value, name, where)) is not None), None),
        test_cmd=_text(value, "test_cmd", where),
        test_patch=_patch(value, "test_patch", where),
        patch=_patch(value, "patch", where),
        fail_to_pass=_tests(value, "FAIL_TO_PASS", where, least=1),
        pass_to_pass=_tests(value, "PASS_TO_PASS", where, least=0),
        where=where,
    )


def _matching(value: Mapping[str, Any], key: str, form: re.Pattern[str], allowed: str, where: str) -> str:
    found = _needed(value, key, where, 255)
    if not form.fullmatch(found):
        raise DataError(f"{where}: {key} is {found[:80]!r}, must be {allowed}")
    return found


def _needed(value: Mapping[str, Any], key: str, where: str, most: int) -> str:
    found = _text(value, key, where, most)
    if found is None:
        raise DataError(f"{where}: {key} must be a text that is not empty, but is {str(value.get(key))[:40]!r}")
    return found


def _text(value: Mapping[str, Any], key: str, where: str, most: int = MAX_NAME) -> str | None:
    """A column; None if it is missing, null or blank. Raises DataError."""
    found = value.get(key)
    if found is None or found == "":
        return None
    if not isinstance(found, str):
        raise DataError(f"{where}: {key} must be a text, but is {str(found)[:40]!r}")
    if any("\ud800" <= character <= "\udfff" or character == "\0" for character in found):
        raise DataError(f"{where}: {key} holds half a surrogate pair or a NUL, which is no character")
    if len(found) > most:
        raise DataError(f"{where}: {key} has {len(found)} characters, at most {most} are allowed")
    return found if found.strip() else None


def _patch(value: Mapping[str, Any], key: str, where: str) -> str:
    text = _text(value, key, where, MAX_PATCH_BYTES) or ""
    if len(text.encode()) > MAX_PATCH_BYTES:
        raise DataError(f"{where}: {key} has {len(text.encode())} bytes, at most {MAX_PATCH_BYTES} are allowed")
    try:
        if text and not parse_patch(text).files:
            raise DataError(f"{where}: {key} is {text[:40]!r}, must be a patch with at least one file")
    except PatchError as error:
        raise DataError(f"{where}: {key} is no patch: {str(error)[:200]}") from None
    return text if not text or text.endswith("\n") else f"{text}\n"


def _tests(value: Mapping[str, Any], key: str, where: str, *, least: int) -> tuple[str, ...]:
    """A column of names: a list, or one as JSON text. Raises DataError."""
    found = value.get(key)
    if isinstance(found, str) and found.strip():
        try:
            found = json.loads(found)
        except (ValueError, RecursionError):
            raise DataError(f"{where}: {key} must be a list, or one as JSON, but is {found[:40]!r}") from None
    if found is None and not least:
        return ()
    if not isinstance(found, list):
        raise DataError(f"{where}: {key} must be a list, or one as JSON, but is {str(found)[:40]!r}")
    if not least <= len(found) <= MAX_TESTS:
        raise DataError(f"{where}: {key} has {len(found)} tests, must have {least} to {MAX_TESTS}")
    for number, name in enumerate(found):
        if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME:
            raise DataError(
                f"{where}: {key}[{number}] is {str(name)[:40]!r}, must be a text of 1 to {MAX_NAME} characters"
            )
    # Published rows have pieces of output among the tests, such as [100%], which no run reports.
    return tuple(dict.fromkeys(name for name in found if least or not name.startswith("[")))
