"""Problems: readers of the formats in use, and a few problems of fairbox's own."""

from rollout.data.records import DataError, read_records
from rollout.data.rows import Row, read_rows

__all__ = ["DataError", "Row", "read_records", "read_rows"]
