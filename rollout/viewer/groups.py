"""Groups of rows, and two steps side by side: one task sampled several times, and at two times of a training. Pure.

Masked rows belong to their group and reach none of its numbers. In a comparison a row's partner has the same group and
the same rank in it, by `index` and then by line; rows without a partner are counted. With sampling, rank says only
which rows are shown together, so judge by groups as well.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

from rollout.viewer.facts import RowFacts

__all__ = ["ADVANTAGE_EPSILON", "Change", "Comparison", "Group", "GroupBy", "compare_steps", "group_rows"]

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


@dataclass(frozen=True)
class Group:
    """Rows of one task."""

    rows: tuple[RowFacts, ...]
    """In the file's order, masked ones included."""

    @property
    def label(self) -> str:
        """The uid that its rows share, or the line of the first."""
        first = self.rows[0]
        return first.uid if first.uid and len({row.uid for row in self.rows}) == 1 else f"line {first.line}"

    @cached_property
    def scores(self) -> list[float]:
        """Of the rows that are scored."""
        return [score for row in self.rows if (score := _score(row)) is not None]

    @property
    def masked(self) -> int:
        """Rows without a score."""
        return len(self.rows) - len(self.scores)

    @cached_property
    def mean(self) -> float | None:
        """None when nothing is scored."""
        return statistics.fmean(self.scores) if self.scores else None

    @cached_property
    def std(self) -> float | None:
        """Of a sample (n - 1), as torch.std has it; None below two scores."""
        return statistics.stdev(self.scores) if len(self.scores) > 1 else None

    @property
    def best(self) -> float | None:
        """The highest score."""
        return max(self.scores, default=None)

    @property
    def worst(self) -> float | None:
        """The lowest score."""
        return min(self.scores, default=None)

    def advantage(self, row: RowFacts) -> float | None:
        """(score - mean) / (std + epsilon), GRPO's; None for a row without a score, and in a group of one."""
        mean, std, score = self.mean, self.std, _score(row)
        if mean is None or std is None or score is None:
            return None
        return (score - mean) / (std + ADVANTAGE_EPSILON)


def group_rows(rows: Sequence[RowFacts], by: GroupBy = GroupBy.AUTO) -> list[Group]:
    """The groups, in the order of their first rows. Broken lines belong to none."""
    whole = [row for row in rows if not row.problem]
    if by is GroupBy.AUTO:
        uids = [row.uid for row in whole if row.uid]
        prompts = {row.prompt_key for row in whole}
        by = GroupBy.INPUT if len(set(uids)) == len(uids) and len(prompts) < len(whole) else GroupBy.UID
    return [Group(tuple(members)) for members in _by_key(whole, by).values()]


@dataclass(frozen=True, slots=True)
class Change:
    """One pair."""

    before: RowFacts
    after: RowFacts

    @property
    def score(self) -> float | None:
        """After minus before; None when one has none."""
        return _minus(self.after.score, self.before.score)

    @property
    def tokens(self) -> float | None:
        """Of the response; characters where the dumps have no tokens."""
        tokens = _minus(self.after.response_tokens, self.before.response_tokens)
        return _minus(self.after.chars, self.before.chars) if tokens is None else tokens

    @property
    def turns(self) -> float | None:
        """After minus before."""
        return _minus(self.after.turns, self.before.turns)


@dataclass(frozen=True, slots=True)
class Comparison:
    """What two steps have in common."""

    changes: tuple[Change, ...]
    """Largest change of the score first; then of length; pairs without two scores last."""
    only_before: int
    only_after: int

    @property
    def scores(self) -> list[float]:
        """Changes of the pairs that have two scores."""
        return [change.score for change in self.changes if change.score is not None]

    @property
    def better(self) -> int:
        """Pairs whose score rose."""
        return sum(score > 0 for score in self.scores)

    @property
    def worse(self) -> int:
        """Pairs whose score fell."""
        return sum(score < 0 for score in self.scores)

    @property
    def mean_change(self) -> float | None:
        """Of the score, over the pairs that have two."""
        return statistics.fmean(self.scores) if self.scores else None


def compare_steps(before: Sequence[RowFacts], after: Sequence[RowFacts], by: GroupBy = GroupBy.AUTO) -> Comparison:
    """Pairs the rows of two steps."""
    if by is GroupBy.AUTO:
        shared = {row.uid for row in before if row.uid} & {row.uid for row in after if row.uid}
        by = GroupBy.UID if shared else GroupBy.INPUT
    first, second = _ranked(before, by), _ranked(after, by)
    changes = [Change(first[key], second[key]) for key in first if key in second]
    changes.sort(key=_order)
    return Comparison(tuple(changes), len(first) - len(changes), len(second) - len(changes))


def _by_key(rows: Sequence[RowFacts], by: GroupBy) -> dict[Hashable, list[RowFacts]]:
    found: defaultdict[Hashable, list[RowFacts]] = defaultdict(list)
    for row in rows:
        key = row.uid if by is GroupBy.UID else row.prompt_key
        found[key or ("line", row.line)].append(row)
    return found


def _ranked(rows: Sequence[RowFacts], by: GroupBy) -> dict[tuple[Hashable, int], RowFacts]:
    whole = [row for row in rows if not row.problem]
    whole.sort(key=lambda row: (row.index is None, row.index or 0, row.line))
    return {(key, rank): row for key, members in _by_key(whole, by).items() for rank, row in enumerate(members)}


def _order(change: Change) -> tuple[bool, float, float, int]:
    score, tokens = change.score, change.tokens
    return (score is None, -abs(score or 0.0), -abs(tokens or 0.0), change.after.line)


def _minus(after: float | None, before: float | None) -> float | None:
    if after is None or before is None:
        return None
    change = after - before
    return change if change == change else None  # NaN is no change


def _score(row: RowFacts) -> float | None:
    return row.score if row.score is not None and math.isfinite(row.score) and not row.masked else None
