"""Colours. Each also differs in brightness or weight, so that nothing is told by hue alone."""

from __future__ import annotations

from collections.abc import Mapping

from rich.style import Style

from rollout.viewer.pieces import HEATS

__all__ = ["DIM", "FOUND", "HEAT_STYLES", "PIECE_STYLES", "PROBLEM", "STRIPES"]

DIM = Style.parse("#8a94a2")
PROBLEM = Style.parse("bold #ff8f7a")
FOUND = Style.parse("#000000 on #c9a227")

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
