"""Splits what a model thought from what it said: closed `<think>` blocks. Pure.

Chat templates open the block for some models, so a turn may hold `</think>` alone. A block that is not closed is no
thought here: what a turn says after an opening that nothing closes stays part of it.
"""

from __future__ import annotations

_OPEN = "<think>"
_CLOSE = "</think>"


def split_reasoning(text: str) -> tuple[str | None, str]:
    """(what was thought, what was said) of a turn; None where nothing was. Line breaks around the tags are theirs.

    Of several blocks the first one is the thought, and what follows the last one is what was said.
    """
    head, closed, _ = text.partition(_CLOSE)
    if not closed:
        return None, text
    said = text[text.rfind(_CLOSE) + len(_CLOSE) :].lstrip("\n")
    return head.rstrip("\n").rpartition(_OPEN)[2].lstrip("\n"), said
