"""Colours. Each also differs in brightness or weight, so that nothing is told by hue alone."""

from __future__ import annotations

from collections.abc import Mapping

from rich.style import Style

from rollout.viewer.document import BlockKind
from rollout.viewer.pieces import HEATS

__all__ = [
    "BLOCK_STYLES",
    "CURSOR",
    "DIM",
    "FOUND",
    "FOUND_CURRENT",
    "HEADER",
    "HEADER_CURRENT",
    "HEAT_STYLES",
    "PIECE_STYLES",
    "PROBLEM",
    "STRIPES",
]

CURSOR = Style.parse("bold #ffffff on #2f5d8a")
HEADER = Style.parse("bold #a8b4c4")
HEADER_CURRENT = Style.parse("bold underline #ffffff")
DIM = Style.parse("#8a94a2")
PROBLEM = Style.parse("bold #ff8f7a")
FOUND = Style.parse("#000000 on #c9a227")
FOUND_CURRENT = Style.parse("bold #000000 on #ffe45c")

BLOCK_STYLES: Mapping[BlockKind, Style] = {
    BlockKind.FACTS: Style.parse("bold #c3cddb"),
    BlockKind.PROMPT: Style.parse("bold #8fb4e8"),
    BlockKind.TURN: Style.parse("bold #8fe0a0"),
    BlockKind.CALL: Style.parse("bold #e8c98f"),
    BlockKind.FAILED_CALL: PROBLEM,
    BlockKind.OTHER: Style.parse("bold #b9a3d8"),
}

PIECE_STYLES: Mapping[str, Style] = {
    "prompt": Style.parse("#8a94a2"),
    "sampled": Style.parse("#d9ffe0 on #17452a"),
    "tool": Style.parse("#ffe9c4 on #4a3312"),
}
"""By mask: only what was sampled is trained on."""
STRIPES: Mapping[str, Style] = {
    "prompt": Style.parse("#b0b9c6"),
    "sampled": Style.parse("#d9ffe0 on #266b42"),
    "tool": Style.parse("#ffe9c4 on #6d4d1d"),
}
"""Every second token, where boundaries are shown."""
HEAT_STYLES = tuple(
    Style.parse(text)
    for text in (
        "#a9c7b1 on #10241a",
        "#e4f0c0 on #3d4a12",
        "#fff0c0 on #7a5a0a",
        "#ffe4d0 on #a04410",
        "bold #ffffff on #c01830",
    )
)
"""From likely to unlikely."""
assert len(HEAT_STYLES) == HEATS
