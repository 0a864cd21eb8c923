"""Differences between a template's rendering of a whole conversation and the pieces of a trajectory. Pure.

The pieces of a conversation alternate: the prompt, a turn, what stands between it and the next, a turn, and so on. The
rendering is searched for the boundaries between turns, in order; between those lie the turns as the template has
them. That tells a template that rewrites a turn from one whose boundaries depend on the history.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

_BEFORE, _AFTER = 20, 60
"""Characters that are shown on each side of a difference."""


class PieceKind(StrEnum):
    """Kinds of pieces of a conversation; in a difference, the kind of the piece that is not as it was."""

    PROMPT = "prompt"
    """Everything before the first turn: a template that changes it when the conversation grows, as one that moves the
    system message."""
    TURN = "turn"
    """The assistant's text: a template that drops its thinking, or trims it."""
    BETWEEN = "between"
    """The text between two turns, with the tools' answers: a template that writes it otherwise in a longer
    conversation."""


@dataclass(frozen=True, slots=True)
class RenderedPiece:
    """A stretch of a conversation's text. A turn whose text is None may be anything."""

    kind: PieceKind
    text: str | None


@dataclass(frozen=True, slots=True)
class Difference:
    """The first place where a piece differs."""

    kind: PieceKind
    turn: int
    """From 1; 0 for the prompt."""
    expected: str
    """The piece around the difference."""
    found: str
    """The rendering around it."""


def align(pieces: Sequence[RenderedPiece], whole: str) -> list[Difference]:
    """Every piece that `whole` has otherwise, at most one boundary; empty when it is their concatenation."""
    differences: list[Difference] = []
    position: int | None = 0  # None: somewhere after a prompt that is not as it was
    start = 0
    for number, piece in enumerate(pieces):
        turn = (number + 1) // 2
        if piece.kind is PieceKind.PROMPT:
            assert piece.text is not None
            if not whole.startswith(piece.text):
                differences.append(_difference(piece.kind, turn, piece.text, whole))
                position = None
            else:
                position = start = len(piece.text)
        elif piece.kind is PieceKind.TURN:
            following = pieces[number + 1].text if number + 1 < len(pieces) else None
            end = _end_of_turn(whole, start, piece.text, following)
            if end is None:
                assert following is not None
                return [*differences, _lost(whole, start, piece.text, following, turn)]
            found = whole[start:end]
            if position is not None and piece.text is not None and found != piece.text:
                kind = PieceKind.TURN if following is not None else PieceKind.BETWEEN
                differences.append(_difference(kind, turn, piece.text, found))
            position = start = end
        else:
            assert piece.text is not None
            start += len(piece.text)
            position = start
    return differences


def common_length(one: str, other: str) -> int:
    """Characters of the longest common prefix of two texts."""
    end = min(len(one), len(other))
    return next((i for i in range(end) if one[i] != other[i]), end)


def _end_of_turn(whole: str, start: int, turn: str | None, following: str | None) -> int | None:
    """End of a turn that begins at `start`: the next boundary, or the text's end if none follows; None if lost."""
    if following is None:
        return len(whole)
    if turn is not None and whole.startswith(turn + following, start):
        return start + len(turn)
    end = whole.find(following, start)
    return None if end < 0 else end


def _lost(whole: str, start: int, turn: str | None, following: str, number: int) -> Difference:
    """The difference of a boundary that is not there: at the turn's end if that is there, else at its own beginning."""
    if turn is not None and whole.startswith(turn, start):
        return _difference(PieceKind.BETWEEN, number, following, whole[start + len(turn) :])
    there, beyond = 0, len(following)  # the longest beginning of it that is there; a longer one is there less often
    while beyond - there > 1:
        middle = (there + beyond) // 2
        there, beyond = (middle, beyond) if whole.find(following[:middle], start) >= 0 else (there, middle)
    at = whole.find(following[:there], start)
    return _difference(PieceKind.BETWEEN, number, following, whole[at:])


def _difference(kind: PieceKind, turn: int, expected: str, found: str) -> Difference:
    same = common_length(expected, found)
    begin = max(0, same - _BEFORE)
    return Difference(kind, turn, expected[begin : same + _AFTER], found[begin : same + _AFTER])
