"""Problems: readers of the formats in use, and a few problems of fairbox's own."""

from rollout.data.rows import DataError, Row, read_rows

__all__ = ["DataError", "Row", "read_rows"]
