"""Groups of rows, and two steps side by side: one task sampled several times, and at two times of a training. Pure.

Rows of a group share their uid, or if no two rows share one, their prompt. Masked rows belong to their group and reach
none of its numbers. In a comparison a row's partner has the same group and the same rank in it, by `index` and then by
line. With sampling, rank says only which rows are shown together, so judge by groups as well.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property

from rollout.viewer.rows.summary import FIELDS, RowSummary

ADVANTAGE_EPSILON = 1e-6
"""Added to the standard deviation, as verl's `compute_grpo_outcome_advantage` does."""


def scores_of(rows: Sequence[RowSummary]) -> list[float]:
    """Scores of the rows that count: not masked, and with a number."""
    return [row.score for row in rows if row.score is not None and math.isfinite(row.score) and not row.masked]


@dataclass(frozen=True)
class Group:
    """Rows of one task."""

    rows: tuple[RowSummary, ...]
    """In the file's order, masked ones included."""

    @property
    def label(self) -> str:
        """The uid that its rows share, or the line of the first."""
        first = self.rows[0]
        return first.uid if first.uid and len({row.uid for row in self.rows}) == 1 else f"line {first.line}"

    @cached_property
    def scores(self) -> list[float]:
        """Scores of the rows that count."""
        return scores_of(self.rows)

    @cached_property
    def mean(self) -> float | None:
        """None if nothing is scored."""
        return statistics.fmean(self.scores) if self.scores else None

    @cached_property
    def std(self) -> float | None:
        """Standard deviation of a sample (n - 1), as torch.std has it; None below two scores."""
        return statistics.stdev(self.scores) if len(self.scores) > 1 else None

    def advantage(self, row: RowSummary) -> float | None:
        """(score - mean) / (std + epsilon), GRPO's; None for a row without a score, and in a group of one."""
        scores = scores_of([row])
        if self.mean is None or self.std is None or not scores:
            return None
        return (scores[0] - self.mean) / (self.std + ADVANTAGE_EPSILON)


def group_rows(rows: Sequence[RowSummary]) -> list[Group]:
    """The groups, in the order of their first rows. Broken lines belong to none."""
    whole = [row for row in rows if not row.problem]
    uids = [row.uid for row in whole if row.uid]
    by_uid = len(set(uids)) < len(uids) or len({row.prompt_key for row in whole}) == len(whole)
    return [Group(tuple(members)) for members in _by_key(whole, by_uid).values()]


@dataclass(frozen=True, slots=True)
class Change:
    """One task in two steps."""

    before: RowSummary
    after: RowSummary

    def of(self, name: str) -> float | None:
        """A number's value after minus before; None if one has none."""
        before, after = FIELDS[name].get(self.before), FIELDS[name].get(self.after)
        if not isinstance(before, int | float) or not isinstance(after, int | float) or math.isnan(after - before):
            return None
        return after - before

    @property
    def tokens(self) -> float | None:
        """Change of the response's tokens; of its characters if the dumps have no tokens."""
        tokens = self.of("response_tokens")
        return self.of("chars") if tokens is None else tokens


def compare_steps(before: Sequence[RowSummary], after: Sequence[RowSummary]) -> list[Change]:
    """Pairs the rows of two steps: largest change of the score first, then of the length; pairs without two scores
    last. By uid if the steps share one, else by the prompt."""
    by_uid = bool({row.uid for row in before if row.uid} & {row.uid for row in after if row.uid})
    first, second = _ranked(before, by_uid), _ranked(after, by_uid)

    def order(change: Change) -> tuple[bool, float, float, int]:
        score = change.of("score")
        return (score is None, -abs(score or 0.0), -abs(change.tokens or 0.0), change.after.line)

    return sorted((Change(first[key], second[key]) for key in first if key in second), key=order)


def _by_key(rows: Sequence[RowSummary], by_uid: bool) -> dict[Hashable, list[RowSummary]]:
    found: defaultdict[Hashable, list[RowSummary]] = defaultdict(list)
    for row in rows:
        found[(row.uid if by_uid else row.prompt_key) or ("line", row.line)].append(row)
    return found


def _ranked(rows: Sequence[RowSummary], by_uid: bool) -> dict[tuple[Hashable, int], RowSummary]:
    whole = [row for row in rows if not row.problem]
    whole.sort(key=lambda row: (row.index is None, row.index or 0, row.line))
    return {(key, rank): row for key, members in _by_key(whole, by_uid).items() for rank, row in enumerate(members)}
