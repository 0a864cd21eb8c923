"""Draws the panels of `deploy/monitoring/dashboard.json`: `docs/dashboard.png`.

Places, titles and expressions are those of the file; a real Prometheus server evaluates the expressions over what it
has scraped. It is not Grafana's own drawing: the lines are, the looks are not.
"""

from __future__ import annotations

import json
import urllib.parse
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.picture_trace import save

__all__ = ["draw_dashboard"]

_UNITS = {"s": "s", "ops": "/s", "bytes": "B", "percentunit": "", "short": ""}
_COLUMNS = 24
_ROW_INCHES = 0.29
_LABELS = 6
"""In a legend: the lines with the largest values."""


def draw_dashboard(dashboard: Path, prometheus: str, *, began: float, ended: float, rate: str, path: Path) -> list[str]:
    """`began` and `ended` are seconds since 1970; `rate` stands for Grafana's `$__rate_interval`. Titles of panels
    without data are returned."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    panels = json.loads(dashboard.read_text())["panels"]
    height = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in panels)
    figure = plt.figure(figsize=(17, height * _ROW_INCHES))
    empty = []
    for panel in panels:
        grid = panel["gridPos"]
        left, bottom = grid["x"] / _COLUMNS, 1 - (grid["y"] + grid["h"]) / height
        if panel["type"] == "row":
            figure.text(0.008, bottom + 0.3 / height, panel["title"], fontsize=11, fontweight="bold")
            continue
        width = grid["w"] / _COLUMNS
        axes = figure.add_axes((left + 0.028, bottom + 1.9 / height, width - 0.034, (grid["h"] - 3.1) / height))
        series = {
            label: line
            for target in panel["targets"]
            for label, line in _range(prometheus, target, began, ended, rate).items()
        }
        if not series:
            empty.append(panel["title"])
        _draw(axes, panel, series, began)
    save(figure, path, dpi=70)
    plt.close(figure)
    return empty


def _draw(axes: Any, panel: Mapping[str, Any], series: Mapping[str, list[tuple[float, float]]], began: float) -> None:
    stacked = panel["fieldConfig"]["defaults"]["custom"]["stacking"]["mode"] == "normal"
    if stacked and series:
        times = sorted({time for line in series.values() for time, _ in line})
        tables = [dict(line) for line in series.values()]
        values = [[table.get(time, 0.0) for time in times] for table in tables]
        axes.stackplot([time - began for time in times], values, labels=list(series), alpha=0.7)
    else:
        for label, line in series.items():
            axes.plot([time - began for time, _ in line], [value for _, value in line], label=label, linewidth=1.1)
    unit = _UNITS[panel["fieldConfig"]["defaults"]["unit"]]
    axes.set_title(f"{panel['title']}{f' ({unit})' if unit else ''}", fontsize=8.5, loc="left")
    axes.set_ylim(bottom=0)
    axes.tick_params(labelsize=6.5)
    axes.grid(linewidth=0.3)
    if series:
        below = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.14)}
        handles, labels = axes.get_legend_handles_labels()
        largest = sorted(labels, key=lambda label: -max(value for _, value in series[label]))[:_LABELS]
        kept = [(handle, label) for handle, label in zip(handles, labels, strict=True) if label in largest]
        axes.legend(*zip(*kept, strict=True), fontsize=6, frameon=False, ncols=3, handlelength=1, **below)


def _range(
    prometheus: str, target: Mapping[str, Any], began: float, ended: float, rate: str
) -> dict[str, list[tuple[float, float]]]:
    """Lines by legend, as (time, value)."""
    expression = target["expr"].replace("$__rate_interval", rate)
    asked = urllib.parse.urlencode({"query": expression, "start": began, "end": ended, "step": 2})
    with urllib.request.urlopen(f"{prometheus}/api/v1/query_range?{asked}", timeout=30) as answer:
        result = json.load(answer)["data"]["result"]
    lines = {}
    for each in result:
        label = target["legendFormat"]
        for name, value in each["metric"].items():
            label = label.replace("{{" + name + "}}", value)
        points = [(float(time), float(value)) for time, value in each["values"] if value != "NaN"]
        if points:
            lines[label] = points
    return lines
