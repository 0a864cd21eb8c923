"""The examples in docs/, as text to be run."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"
_FENCE = re.compile(r"^( *)```(\w+)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)


def examples(page: str, language: str, replaced: dict[str, str] | None = None) -> list[str]:
    """The fenced blocks of a page in one language, in order. `replaced`: addresses in them -> those of a test."""
    text = (DOCS / page).read_text(encoding="utf-8")
    for old, new in (replaced or {}).items():
        text = text.replace(old, new)
    return [textwrap.dedent(block) for _, name, block in _FENCE.findall(text) if name == language]
