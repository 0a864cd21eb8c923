"""The formulas of localization, of sets, spans and counts. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Set
from dataclasses import dataclass

from rollout.rewards.localization.answer import LineSpan


@dataclass(frozen=True, slots=True)
class Overlap:
    """Precision and recall of a predicted set."""

    precision: float
    """|P and T| / |P|; 0 of an empty prediction."""
    recall: float
    """|P and T| / |T|; 0 of an empty truth."""

    def f(self, beta: float = 1.0) -> float:
        """(1 + beta^2) * precision * recall / (beta^2 * precision + recall); 0 if the sets share nothing.

        Below 1, `beta` favours precision.
        """
        weight = beta * beta
        whole = weight * self.precision + self.recall
        return (1 + weight) * self.precision * self.recall / whole if self.precision * self.recall > 0 else 0.0


def overlap(predicted: Set[str], true: Set[str]) -> Overlap:
    """Overlap of two sets. An empty truth gives 0 whatever is predicted."""
    hits = len(predicted & true)
    return Overlap(hits / len(predicted) if predicted else 0.0, hits / len(true) if true else 0.0)


def cosine(t: float, period: float, start: float, end: float) -> float:
    """From `end` at t = 0 to `start` at t = period, along half a cosine: start + (end - start) (cos(pi t / T) + 1) / 2.

    The arguments are in the order of the function that this comes from, whose names for them are mu_min and mu_max.
    """
    return start + 0.5 * (end - start) * (math.cos(math.pi * t / period) + 1)


def line_iou(predicted: Iterable[LineSpan], true: Iterable[LineSpan]) -> float:
    """Lines in both over lines in either, over all files; 1 if neither names any."""
    common, ours, theirs = _lines(predicted, true)
    return common / (ours + theirs - common) if ours or theirs else 1.0


def line_overlap(predicted: Iterable[LineSpan], true: Iterable[LineSpan]) -> Overlap:
    """The same as `overlap`, of the sets of lines."""
    common, ours, theirs = _lines(predicted, true)
    return Overlap(common / ours if ours else 0.0, common / theirs if theirs else 0.0)


def _lines(predicted: Iterable[LineSpan], true: Iterable[LineSpan]) -> tuple[int, int, int]:
    """Number of lines in both, in `predicted`, and in `true`."""
    ours, theirs = _merged(predicted), _merged(true)
    common = sum(_common(spans, theirs[file]) for file, spans in ours.items() if file in theirs)
    return common, _length(ours), _length(theirs)


_Spans = list[tuple[int, int]]


def _merged(spans: Iterable[LineSpan]) -> dict[str, _Spans]:
    """Spans by file, in order, none of which overlap."""
    merged: dict[str, _Spans] = {}
    for span in sorted(spans, key=lambda span: (span.file, span.first)):
        of_file = merged.setdefault(span.file, [])
        if of_file and span.first <= of_file[-1][1]:
            of_file[-1] = (of_file[-1][0], max(of_file[-1][1], span.last))
        else:
            of_file.append((span.first, span.last))
    return merged


def _length(spans: dict[str, _Spans]) -> int:
    return sum(last - first + 1 for of_file in spans.values() for first, last in of_file)


def _common(ours: _Spans, theirs: _Spans) -> int:
    total = i = j = 0
    while i < len(ours) and j < len(theirs):
        total += max(0, min(ours[i][1], theirs[j][1]) - max(ours[i][0], theirs[j][0]) + 1)
        if ours[i][1] < theirs[j][1]:
            i += 1
        else:
            j += 1
    return total
