"""Parquet files that are whole or not there: written beside their place and renamed into it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from fairbox.extras import require
from rollout.data.records import DataError


def write_parquet(path: Path, rows: Iterable[dict[str, Any]], *, schema: Callable[[Any], Any] | None = None) -> int:
    """Writes a parquet file; how many rows. `schema` makes pyarrow's of that module; None: what the rows say. The same
    rows give the same bytes. Raises DataError."""
    require(f"{path}: writing parquet", "engine", "pyarrow")
    import pyarrow as arrow
    import pyarrow.parquet as parquet

    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        table = arrow.Table.from_pylist(list(rows), schema=None if schema is None else schema(arrow))
        path.parent.mkdir(parents=True, exist_ok=True)
        parquet.write_table(table, unfinished, compression="zstd")
        unfinished.replace(path)
    except UnicodeEncodeError:
        raise DataError(f"{path}: a column has bytes that are not UTF-8, which parquet can't hold") from None
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error}") from None
    finally:
        with contextlib.suppress(OSError):
            unfinished.unlink(missing_ok=True)
    return int(table.num_rows)
