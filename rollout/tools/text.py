"""A tool's output as text for a model: never more than asked for, and never cut without saying so. Pure.

All tools cut their output here, so that a model learns one marker: `[... cut: 50005 bytes in all ...]`.
"""

from __future__ import annotations

NO_OUTPUT = "[no output]"
"""Said instead of nothing, because models run the same code again when they see nothing."""
LEAST_CHARS = 16
"""Below it the markers alone would say more than the output."""


def marker(total_bytes: int) -> str:
    """Text in the place of what is left out. `total_bytes` is the size of the whole output."""
    return f"[... cut: {total_bytes} bytes in all ...]"


def cut_text(text: str, limit: int, *, total_bytes: int | None = None, end: bool = False) -> tuple[str, bool]:
    """(text, whether it was cut): at most `limit` characters of it, and a marker in a line of its own.

    Left are the first two thirds and the last third of the room, because a beginning says what it is and an end how it
    went; with `end` the end alone, where a traceback says what happened. `total_bytes` is the size of the whole output,
    of which `text` may be the beginning only; None: that of `text`.
    """
    if len(text) <= limit:
        return text, False
    said = marker(len(text.encode("utf-8", "replace")) if total_bytes is None else total_bytes)
    if end:
        return f"{said}\n{text[len(text) - limit :]}", True
    tail = limit // 3
    return f"{text[: limit - tail]}\n{said}\n{text[len(text) - tail :]}", True
