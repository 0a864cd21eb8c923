"""Makes room in a conversation that fills its context: old answers of tools give way to a line that says their size.

Pure. That rewrites what the model has seen, so it is never done within a row of tokens: the trajectory's present part
is closed as it is, and the condensed conversation is the prompt of the next part (`TrajectoryResult.earlier`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from fairbox.settings import check, setting
from rollout.tokens.conversation import MessageTurn


@dataclass(frozen=True)
class Condensation:
    """Off unless `at_tokens` is set. Raises ConfigError."""

    at_tokens: int | None = setting(
        None, least=1, help="Prompt and response at which old answers of tools are left out; none: never."
    )
    keep_last: int = setting(4, least=0, help="Answers of tools that stay as they are, the newest ones.")

    def __post_init__(self) -> None:
        check(self, "condense")


def condensed(turns: Sequence[MessageTurn], keep_last: int) -> tuple[MessageTurn, ...] | None:
    """The turns with their old answers left out; None where all of them stay.

    What the model said stays. An answer that is no longer than the line in its place stays, and with it one that was
    left out before.
    """
    old = sum(len(turn.answers) for turn in turns) - keep_last
    made, seen = [], 0
    for turn in turns:
        answers = tuple(_shorter(text) if seen + n < old else text for n, text in enumerate(turn.answers))
        seen += len(turn.answers)
        made.append(replace(turn, answers=answers))
    return None if made == list(turns) else tuple(made)


def _shorter(text: str) -> str:
    said = f"[{len(text)} characters of output are no longer shown; repeat the call to see them]"
    return said if len(said) < len(text) else text
