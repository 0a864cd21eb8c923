"""Draws one trace as a waterfall: `docs/trace.png`. The spans are those that a collector took; nothing is made up."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fairbox.collector import SeenSpan

__all__ = ["draw_trace", "save"]

_COLOURS = {"rollout": "#4c72b0", "limiter": "#dd8452", "executor": "#55a868"}
_FACTS = ("outcome", "cause", "tool", "tokens", "finish", "stop_reason", "status")


def draw_trace(spans: Sequence[SeenSpan], path: Path) -> None:
    """`spans` are all of one trace, in any order. Above the whole of it, below its first tool call alone."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    rows = list(_ordered(spans))
    call = next(index for index, (span, _) in enumerate(rows) if span.name == "rollout.tool_call")
    depth = rows[call][1]
    end = next((i for i in range(call + 1, len(rows)) if rows[i][1] <= depth), len(rows))
    zoomed = [(span, below - depth) for span, below in rows[call:end]]
    heights = [len(rows) + 2, len(zoomed) + 2]
    figure, (above, below) = plt.subplots(2, 1, figsize=(12, 0.27 * sum(heights)), height_ratios=heights)
    _waterfall(above, rows, f"trace {rows[0][0].trace_id}: one trajectory")
    _waterfall(below, zoomed, "its first tool call")
    handles = [_patch(colour, service) for service, colour in _COLOURS.items()]
    below.legend(handles=handles, fontsize=8, loc="lower right")
    figure.tight_layout()
    save(figure, path, dpi=80)
    plt.close(figure)


def save(figure: Any, path: Path, *, dpi: int) -> None:
    """Writes a PNG of few colours: a third of the bytes."""
    from PIL import Image

    with io.BytesIO() as buffer:
        figure.savefig(buffer, dpi=dpi, format="png")
        Image.open(buffer).convert("RGB").quantize(96, dither=Image.Dither.NONE).save(path, optimize=True)


def _waterfall(axes: Any, rows: Sequence[tuple[SeenSpan, int]], title: str) -> None:
    start = rows[0][0].began_s
    whole = max(span.ended_s for span, _ in rows) - start
    milli = whole < 1
    scale = 1000 if milli else 1
    for line, (span, depth) in enumerate(rows):
        seconds = span.ended_s - span.began_s
        left, width = (span.began_s - start) * scale, max(seconds, whole / 500) * scale
        axes.barh(line, width, left=left, height=0.62, color=_COLOURS[span.service])
        told = (span.attributes.get(f"fairbox.{name}") for name in _FACTS)
        facts = " ".join(str(fact) for fact in told if fact is not None)
        axes.text((-0.36 + depth * 0.015) * whole * scale, line, span.name, va="center", fontsize=8)
        text = f"{_time(seconds)}  {facts}"
        axes.text(left + width + 0.006 * whole * scale, line, text, va="center", fontsize=7.5, color="#444444")
    axes.set_ylim(len(rows) - 0.4, -0.8)
    axes.set_xlim(-0.37 * whole * scale, 1.25 * whole * scale)
    axes.set_xticks([tick for tick in axes.get_xticks() if 0 <= tick <= 1.1 * whole * scale])
    axes.set_yticks([])
    axes.set_xlabel("milliseconds" if milli else "seconds", fontsize=8)
    axes.tick_params(labelsize=8)
    axes.set_title(title, fontsize=9, loc="left")
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)


def _ordered(spans: Sequence[SeenSpan]) -> list[tuple[SeenSpan, int]]:
    """Parents before their children, in the order of time, with their depths."""
    ids = {span.span_id for span in spans}
    found: list[tuple[SeenSpan, int]] = []

    def add(parents: Sequence[SeenSpan], depth: int) -> None:
        for span in sorted(parents, key=lambda each: each.began_s):
            found.append((span, depth))
            add([each for each in spans if each.parent_id == span.span_id], depth + 1)

    add([span for span in spans if span.parent_id not in ids], 0)
    return found


def _time(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1000:.3g} ms"


def _patch(colour: str, label: str) -> Any:
    from matplotlib.patches import Patch

    return Patch(color=colour, label=label)
