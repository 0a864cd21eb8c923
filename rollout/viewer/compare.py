"""Two steps side by side: the same task at two times of a training. Pure.

A row's partner has the same group (uid, or prompt) and the same rank in it, by `index` and then by line; rows without a
partner are counted. With sampling, rank says only which rows are shown together, so judge by groups as well.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from rollout.viewer.facts import RowFacts
from rollout.viewer.groups import GroupBy, grouping

__all__ = ["Change", "Comparison", "compare_steps"]


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
        return _minus(self.after.turns, self.before.turns)


@dataclass(frozen=True, slots=True)
class Comparison:
    """What two steps have in common."""

    changes: tuple[Change, ...]
    """Largest change of the score first; then of length; pairs without two scores last."""
    only_before: int
    only_after: int

    @property
    def better(self) -> int:
        return sum(change.score is not None and change.score > 0 for change in self.changes)

    @property
    def worse(self) -> int:
        return sum(change.score is not None and change.score < 0 for change in self.changes)

    @property
    def mean_change(self) -> float | None:
        """Of the score, over the pairs that have two."""
        known = [change.score for change in self.changes if change.score is not None]
        return sum(known) / len(known) if known else None


def compare_steps(before: Sequence[RowFacts], after: Sequence[RowFacts], by: GroupBy = GroupBy.AUTO) -> Comparison:
    """Pairs the rows of two steps."""
    if by is GroupBy.AUTO:
        shared = {row.uid for row in before if row.uid} & {row.uid for row in after if row.uid}
        by = GroupBy.UID if shared else GroupBy.INPUT
    first, second = _ranked(before, by), _ranked(after, by)
    changes = [Change(first[key], second[key]) for key in first if key in second]
    changes.sort(key=_order)
    return Comparison(tuple(changes), len(first) - len(changes), len(second) - len(changes))


def _ranked(rows: Sequence[RowFacts], by: GroupBy) -> dict[tuple[Hashable, int], RowFacts]:
    whole = [row for row in rows if not row.problem]
    key_of = grouping(whole, by)
    ranks: defaultdict[Hashable, int] = defaultdict(int)
    found: dict[tuple[Hashable, int], RowFacts] = {}
    for row in sorted(whole, key=lambda row: (row.index is None, row.index or 0, row.line)):
        key = key_of(row)
        found[key, ranks[key]] = row
        ranks[key] += 1
    return found


def _order(change: Change) -> tuple[bool, float, float, int]:
    score, tokens = change.score, change.tokens
    return (score is None, -abs(score or 0.0), -abs(tokens or 0.0), change.after.line)


def _minus(after: float | None, before: float | None) -> float | None:
    if after is None or before is None:
        return None
    change = after - before
    return change if change == change else None  # NaN is no change
