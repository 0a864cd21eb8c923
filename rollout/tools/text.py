"""Program output as text for a model: never more than asked for, and never cut without saying so. Pure."""

from __future__ import annotations

__all__ = ["NO_OUTPUT", "cut_end", "cut_middle"]

NO_OUTPUT = "[no output]"
"""Said instead of nothing, because models run the same code again when they see nothing."""


def cut_middle(text: str, limit: int, total_bytes: int) -> tuple[str, bool]:
    """(text, whether it was cut): beginning and end, together `limit` characters, with a marker between them.

    `total_bytes` is the size of the whole output, of which `text` may be the beginning only.
    """
    if len(text) <= limit:
        return text, False
    head = limit - limit // 3
    tail = text[len(text) - limit // 3 :] if limit >= 3 else ""
    return f"{text[:head]}\n[... cut: {total_bytes} bytes in all ...]\n{tail}", True


def cut_end(text: str, limit: int) -> tuple[str, bool]:
    """(text, whether it was cut): the last `limit` characters, where a traceback says what happened."""
    if len(text) <= limit:
        return text, False
    return f"[... cut ...]\n{text[len(text) - limit :]}", True
