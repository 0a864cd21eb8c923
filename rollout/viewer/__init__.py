"""Reads dumps of trajectories as a person does: rows, turns, tokens, groups, changes between steps.

Everything here but `rollout.viewer.app` and what it shows is without a terminal and without Textual: an index of a dump
that is larger than memory, filters, groups, search and comparison can be used from a notebook or a script.
"""

from rollout.viewer.facts import RowFacts
from rollout.viewer.filters import Filter, FilterError, RowView, parse_filter
from rollout.viewer.groups import Change, Comparison, Group, GroupBy, compare_steps, group_rows
from rollout.viewer.index import DumpFolder, IndexState, Step, StepFile
from rollout.viewer.lookup import Query, QueryError, SearchHit, SearchProgress, parse_query, search

__all__ = [
    "Change",
    "Comparison",
    "DumpFolder",
    "Filter",
    "FilterError",
    "Group",
    "GroupBy",
    "IndexState",
    "Query",
    "QueryError",
    "RowFacts",
    "RowView",
    "SearchHit",
    "SearchProgress",
    "Step",
    "StepFile",
    "compare_steps",
    "group_rows",
    "parse_filter",
    "parse_query",
    "search",
]
