"""A tool's output as text for a model: never more than asked for, and never cut without saying so. Pure.

All tools cut their output here, so that a model learns one marker: `[... cut: 50005 bytes in all ...]`.
"""

from __future__ import annotations

from enum import StrEnum

__all__ = ["NO_OUTPUT", "Keep", "cut_text", "marker"]

NO_OUTPUT = "[no output]"
"""Said instead of nothing, because models run the same code again when they see nothing."""
LEAST_CHARS = 16
"""Below it the markers alone would say more than the output."""


class Keep(StrEnum):
    """What is left of a text that is too long."""

    ENDS = "ends"
    """The first two thirds and the last third of the room: a beginning says what it is, an end how it went."""
    START = "start"
    """The beginning."""
    END = "end"
    """The end, where a traceback says what happened."""


def marker(total_bytes: int) -> str:
    """What stands where something is left out. `total_bytes` is the size of the whole output."""
    return f"[... cut: {total_bytes} bytes in all ...]"


def cut_text(text: str, limit: int, *, total_bytes: int | None = None, keep: Keep = Keep.ENDS) -> tuple[str, bool]:
    """(text, whether it was cut): at most `limit` characters of it, and a marker in a line of its own.

    `total_bytes` is the size of the whole output, of which `text` may be the beginning only; None: that of `text`.
    """
    if len(text) <= limit:
        return text, False
    said = marker(len(text.encode("utf-8", "replace")) if total_bytes is None else total_bytes)
    if keep is Keep.START:
        return f"{text[:limit]}\n{said}", True
    if keep is Keep.END:
        return f"{said}\n{text[len(text) - limit :]}", True
    tail = limit // 3
    return f"{text[: limit - tail]}\n{said}\n{text[len(text) - tail :]}", True
