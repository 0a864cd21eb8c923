"""Cost of the rollout tier, apart from engines and tools."""

from benchmarks.rollout import loop, many, page, schedule, tool

PARTS = {"loop": loop.rows, "schedule": schedule.rows, "tool": tool.rows, "many": many.rows, "page": page.rows}
