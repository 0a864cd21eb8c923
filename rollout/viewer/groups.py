"""Groups of rows, with the statistics that group-relative advantages are made of. Pure.

Masked rows belong to their group and reach none of its numbers.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from rollout.viewer.facts import RowFacts

__all__ = ["ADVANTAGE_EPSILON", "Group", "GroupBy", "group_rows", "grouping"]

ADVANTAGE_EPSILON = 1e-6
"""Added to the standard deviation, as verl's `compute_grpo_outcome_advantage` does."""


class GroupBy(StrEnum):
    """What rows of a group have in common."""

    AUTO = "auto"
    """`uid` where rows share it; `input` where every row has a uid of its own, or none."""
    UID = "uid"
    """The field `uid`."""
    INPUT = "input"
    """The prompt's text."""


@dataclass(frozen=True, slots=True)
class Group:
    """Rows of one task."""

    key: Hashable
    label: str
    """The uid that its rows share, or the line of the first."""
    rows: tuple[RowFacts, ...]
    """In the file's order, masked and broken ones included."""

    @property
    def scores(self) -> list[float]:
        """Of the rows that are scored."""
        return [row.score for row in self.rows if _scored(row) and row.score is not None]

    @property
    def masked(self) -> int:
        """Rows without a score."""
        return len(self.rows) - len(self.scores)

    @property
    def mean(self) -> float | None:
        """None when nothing is scored."""
        scores = self.scores
        return math.fsum(scores) / len(scores) if scores else None

    @property
    def std(self) -> float | None:
        """Of a sample (n - 1), as torch.std has it; None below two scores."""
        scores = self.scores
        if len(scores) < 2:
            return None
        mean = math.fsum(scores) / len(scores)
        return math.sqrt(math.fsum((score - mean) ** 2 for score in scores) / (len(scores) - 1))

    @property
    def best(self) -> RowFacts | None:
        """The first row with the highest score."""
        return max(filter(_scored, self.rows), key=_score, default=None)

    @property
    def worst(self) -> RowFacts | None:
        """The first row with the lowest score."""
        return min(filter(_scored, self.rows), key=_score, default=None)

    def advantage(self, row: RowFacts) -> float | None:
        """(score - mean) / (std + epsilon), GRPO's; None for a row without a score, and in a group of one."""
        mean, std = self.mean, self.std
        if mean is None or std is None or not _scored(row):
            return None
        return (_score(row) - mean) / (std + ADVANTAGE_EPSILON)


def grouping(rows: Sequence[RowFacts], by: GroupBy) -> Callable[[RowFacts], Hashable]:
    """The key of a row's group."""
    if by is GroupBy.AUTO:
        uids = [row.uid for row in rows if row.uid]
        prompts = {row.prompt_key for row in rows}
        by = GroupBy.INPUT if len(set(uids)) == len(uids) and len(prompts) < len(rows) else GroupBy.UID
    if by is GroupBy.UID:
        return lambda row: row.uid or ("line", row.line)
    return lambda row: row.prompt_key or ("line", row.line)


def group_rows(rows: Sequence[RowFacts], by: GroupBy = GroupBy.AUTO) -> list[Group]:
    """The groups, in the order of their first rows. Broken lines belong to none."""
    whole = [row for row in rows if not row.problem]
    key_of = grouping(whole, by)
    found: defaultdict[Hashable, list[RowFacts]] = defaultdict(list)
    for row in whole:
        found[key_of(row)].append(row)
    return [Group(key, _label(members), tuple(members)) for key, members in found.items()]


def _label(rows: Sequence[RowFacts]) -> str:
    uids = {row.uid for row in rows}
    return rows[0].uid if len(uids) == 1 and rows[0].uid else f"line {rows[0].line}"


def _scored(row: RowFacts) -> bool:
    return row.score is not None and math.isfinite(row.score) and not row.masked


def _score(row: RowFacts) -> float:
    assert row.score is not None
    return row.score
