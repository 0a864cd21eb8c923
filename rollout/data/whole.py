"""Files of rows that are whole or not there: written beside their place and renamed into it."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from fairbox.extras import require
from rollout.data.records import DataError

_GROUP = 32
"""Rows that are in memory at once, of those that have a schema: tests of a problem can be tens of megabytes."""


def write_parquet(path: Path, rows: Iterable[dict[str, Any]], *, schema: Callable[[Any], Any] | None = None) -> int:
    """Writes a parquet file; how many rows. `schema` makes pyarrow's of that module, and rows are written as they come;
    None: what all the rows say. The same rows give the same bytes. Raises DataError."""
    require(f"{path}: writing parquet", "engine", "pyarrow")
    import pyarrow as arrow
    import pyarrow.parquet as parquet

    try:
        with _unfinished(path) as file:
            if schema is None:
                table = arrow.Table.from_pylist(list(rows))
                parquet.write_table(table, file, compression="zstd")
                return int(table.num_rows)
            form, number = schema(arrow), 0
            with parquet.ParquetWriter(file, form, compression="zstd") as writer:
                while some := list(itertools.islice(rows := iter(rows), _GROUP)):
                    writer.write_table(arrow.Table.from_pylist(some, schema=form))
                    number += len(some)
            return number
    except UnicodeEncodeError:
        raise DataError(f"{path}: a column has bytes that are not UTF-8, which parquet can't hold") from None


def write_json_lines(path: Path, values: Iterable[dict[str, Any]]) -> None:
    """Writes a JSON text a line. Raises DataError."""
    text = "".join(json.dumps(value, ensure_ascii=False) + "\n" for value in values)
    with _unfinished(path) as file:
        file.write(text.encode(errors="backslashreplace"))


@contextlib.contextmanager
def _unfinished(path: Path) -> Iterator[BinaryIO]:
    """A file that takes its place when the block is left, unless it is left by an error. Raises DataError."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with unfinished.open("wb") as file:
            yield file
        unfinished.replace(path)
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error}") from None
    finally:
        with contextlib.suppress(OSError):
            unfinished.unlink(missing_ok=True)
