"""Rows of dumps as lists, documents and tokens, before anything is drawn. Pure, but for the files that are read."""

from rollout.viewer.rows.filters import parse_filter
from rollout.viewer.rows.index import DumpFolder, read_row

__all__ = ["DumpFolder", "parse_filter", "read_row"]
