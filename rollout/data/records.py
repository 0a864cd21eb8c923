"""Reads files of rows: JSONL and parquet, one row at a time, each with the place that errors name."""

from __future__ import annotations

import gzip
import itertools
import json
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol, TypeVar

from fairbox.errors import FairboxError
from fairbox.extras import require

LONGEST_STATEMENT = 200_000
"""Characters of a problem statement; a longer one is no report, and no context would hold it."""


class DataError(FairboxError):
    """A file of problems can't be used. The text starts with file and line (or row)."""


class _Instance(Protocol):
    """A row that a file has once."""

    @property
    def instance_id(self) -> str: ...

    @property
    def where(self) -> str: ...


_Row = TypeVar("_Row", bound=_Instance)


def read_records(path: Path) -> Iterator[tuple[str, Any]]:
    """(where, value) of each row of a `.jsonl`, `.json` (one value a line), `.jsonl.gz` or `.parquet` file, in order.

    `where` is `FILE:LINE` or `FILE: row N`, both from 1. Values of parquet are mappings of plain Python values. Raises
    DataError, also while it is iterated.
    """
    if path.suffix in (".jsonl", ".json") or path.name.endswith(".jsonl.gz"):
        return _json_file(path)
    if path.suffix == ".parquet":
        return _parquet(path)
    raise DataError(f"{path}: must end in .jsonl or .parquet")


def read_instances(path: Path, make: Callable[[Any, str], _Row], limit: int | None = None) -> list[_Row]:
    """The first `limit` rows of a file, fewer if it has fewer, as `make(value, where)` makes them. Raises DataError,
    also for a file without rows and for an instance_id that two have."""
    rows = [make(value, where) for where, value in itertools.islice(read_records(path), limit)]
    if not rows:
        raise DataError(f"{path}: holds no rows")
    seen: dict[str, str] = {}
    for row in rows:
        if row.instance_id in seen:
            raise DataError(f"{row.where}: has the instance_id {row.instance_id!r}, as {seen[row.instance_id]} has")
        seen[row.instance_id] = row.where
    return rows


def text_column(record: Mapping[str, Any], key: str, where: str, most: int) -> str:
    """A column with a text of at most `most` characters that is not empty. Raises DataError."""
    value = record.get(key)
    if not isinstance(value, str) or not value.strip():
        raise DataError(f"{where}: {key} must be a text that is not empty, but is {str(value)[:40]!r}")
    if any("\ud800" <= character <= "\udfff" for character in value):
        raise DataError(f"{where}: {key} holds half a surrogate pair, which is no character")
    if len(value) > most:
        raise DataError(f"{where}: {key} has {len(value)} characters, at most {most} are allowed")
    return value


def _json_file(path: Path) -> Iterator[tuple[str, Any]]:
    try:
        with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8") as file:
            yield from json_lines(file, str(path))
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: {getattr(error, 'strerror', None) or error}") from None
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: is not UTF-8 text: {error.reason}") from None


def json_lines(lines: Iterable[str], name: str) -> Iterator[tuple[str, Any]]:
    """(where, value) of each line that is not blank. Raises DataError."""
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                yield f"{name}:{number}", json.loads(line)
            except (json.JSONDecodeError, RecursionError) as error:
                raise DataError(f"{name}:{number}: is not JSON: {error}") from None


def _parquet(path: Path) -> Iterator[tuple[str, Any]]:
    require(f"{path}: reading parquet", "engine", "pyarrow")
    import pyarrow as arrow
    import pyarrow.parquet as parquet

    try:
        with parquet.ParquetFile(path) as file:
            number = 0
            for batch in file.iter_batches(batch_size=256):
                for record in batch.to_pylist():
                    number += 1
                    yield f"{path}: row {number}", record
    except (OSError, arrow.ArrowException) as error:
        raise DataError(f"{path}: can't be read as parquet: {str(error).splitlines()[0]}") from None
