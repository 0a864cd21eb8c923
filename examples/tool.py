"""A tool of one's own: searches the passages of a JSONL file, rare words first, and needs no executor.

    tools:                                       # tools.yaml, for `fairbox rollout tools=tools.yaml`
      - class_name: examples.tool.SearchTool
        config: {corpus: corpus.jsonl, top_k: 3}

A tool is a class with a schema and `execute`; the rest of `rollout.tools.Tool` has defaults.
"""

from __future__ import annotations

import asyncio
import heapq
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from fairbox.config import setting
from fairbox.errors import ConfigError
from rollout.tools import ParameterSchema, Tool, ToolOutcome, ToolResponse, ToolSchema


@dataclass(frozen=True)
class SearchConfig:
    """Settings of the tool, checked when the file is loaded."""

    corpus: str = setting(help="JSONL file, one object a line, with a field `text`.")
    top_k: int = setting(3, least=1, help="Passages that a call returns at most.")


class SearchTool(Tool):
    """`async with SearchTool(config) as tool`."""

    config_type = SearchConfig
    repeatable = True  # a search changes nothing
    default_schema = ToolSchema(
        name="search",
        description="Searches a collection of texts and returns the passages that fit best.",
        parameters={"query": ParameterSchema("string", "The words to look for.")},
        required=("query",),
    )

    async def __aenter__(self) -> Self:
        """Reads the corpus. What takes long runs in a thread, or it stops every other trajectory."""
        try:
            lines = await asyncio.to_thread(Path(self.config.corpus).read_text, encoding="utf-8")
            self.texts = [str(json.loads(line)["text"]) for line in lines.splitlines()]
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise ConfigError(f"{self.config.corpus}: {error}") from None
        self.places: dict[str, set[int]] = {}
        for place, text in enumerate(self.texts):
            for word in _words(text):
                self.places.setdefault(word, set()).add(place)
        return self

    async def execute(
        self, trajectory_id: str, arguments: Mapping[str, Any], *, time_limit_s: float | None = None
    ) -> ToolResponse:
        """Answers with the best passages. What the model did wrong is text for it."""
        words = set(_words(arguments["query"]))
        if not words:
            return ToolResponse('Error: the argument "query" has no words.', ToolOutcome.BAD_ARGUMENTS)
        scores: dict[int, float] = {}
        for places in (self.places.get(word, set()) for word in words):
            for place in places:
                scores[place] = scores.get(place, 0.0) + 1 / len(places)
        best = heapq.nsmallest(self.config.top_k, scores, key=lambda place: (-scores[place], place))
        found = [f"[{rank}] {self.texts[place]}" for rank, place in enumerate(best, 1)]
        return ToolResponse("\n\n".join(found) or "[no passage has any of these words]", ToolOutcome.OK)

    async def branch(self, trajectory_id: str, branches: Sequence[str]) -> None:
        """Copies nothing: the tool keeps nothing of a trajectory."""


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())
