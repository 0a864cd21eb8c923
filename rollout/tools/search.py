"""`search`: finds passages in a local corpus. The example of a tool that needs no executor (docs/tools.md).

The corpus is a JSONL file, one object a line with a text and, if one likes, a title. It is read when the tool is
entered, and searched in this process by BM25, which costs some microseconds a document that has one of the query's
words. The tool has no state between calls, so calls run in parallel and branches have nothing to copy.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self

from fairbox.clock import Clock, MonotonicClock
from fairbox.config import setting
from fairbox.errors import ConfigError
from rollout.tools.base import ToolOutcome, ToolResponse
from rollout.tools.bm25 import Bm25Index
from rollout.tools.schema import ParameterSchema, ToolSchema
from rollout.tools.services import ToolServices
from rollout.tools.text import Keep, check_text_settings, cut_text

__all__ = ["SearchConfig", "SearchTool"]

MAX_QUERY_CHARS = 1000
"""A longer query is a pasted text; each of its words would cost a pass over the documents that have it."""
NOTHING_FOUND = "[no passage has any of these words]"


@dataclass(frozen=True)
class SearchConfig:
    """Settings of the tool."""

    corpus: str = setting(help="JSONL file, one object a line.")
    text_field: str = setting("text", help="Field with the passage.")
    title_field: str = setting("title", help="Field with its title; lines may lack it.")
    top_k: int = setting(3, help="Passages that a call returns at most; from 1.")
    max_documents: int = setting(1_000_000, help="Lines that a corpus may have; it is held in memory.")
    max_output_chars: int = setting(2000, help="Characters of the passages together that the model sees; from 16.")
    keep_output: str = setting(Keep.START.value, help="What is left of longer passages: ends, start or end.")

    def validate(self, path: str = "tool") -> None:
        """ConfigError for what types can't say. `path` is where the settings stand."""
        for name in ("top_k", "max_documents"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{path}.{name} is {getattr(self, name)}, must be at least 1")
        check_text_settings(path, self.max_output_chars, self.keep_output)


@dataclass(frozen=True, slots=True)
class _Passage:
    title: str
    text: str

    def __str__(self) -> str:
        return f"{self.title}\n{self.text}" if self.title else self.text


class SearchTool:
    """`async with SearchTool(config) as tool`. Raises ConfigError for a corpus that can't be read."""

    config_type: ClassVar[type[SearchConfig]] = SearchConfig
    default_schema: ClassVar[ToolSchema] = ToolSchema(
        name="search",
        description="Searches a collection of texts and returns the passages that fit best.",
        parameters={"query": ParameterSchema("string", "The words to look for.")},
        required=("query",),
    )
    parallel = True

    def __init__(self, config: SearchConfig, *, schema: ToolSchema | None = None, clock: Clock | None = None) -> None:
        config.validate()
        self.schema = schema or self.default_schema
        self._config = config
        self._clock = clock or MonotonicClock()
        self._passages: list[_Passage] = []
        self._index = Bm25Index(())

    @classmethod
    def from_config(cls, config: SearchConfig, services: ToolServices, schema: ToolSchema | None) -> Self:
        """As the registry makes it. This tool needs none of the services."""
        return cls(config, schema=schema)

    async def __aenter__(self) -> Self:
        self._passages = await asyncio.to_thread(_read, self._config)
        self._index = await asyncio.to_thread(Bm25Index, map(str, self._passages))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._passages, self._index = [], Bm25Index(())

    async def create(self, trajectory_id: str, **options: Any) -> None:
        """Nothing to prepare."""

    async def execute(
        self, trajectory_id: str, arguments: Mapping[str, Any], *, time_limit_s: float | None = None
    ) -> ToolResponse:
        """The passages for `arguments["query"]`, best first, numbered."""
        query: str = arguments["query"]
        if not query.strip():
            return ToolResponse('Error: the argument "query" is empty.', ToolOutcome.BAD_ARGUMENTS)
        if len(query) > MAX_QUERY_CHARS:
            text = f'Error: the argument "query" has {len(query)} characters, at most {MAX_QUERY_CHARS} are allowed.'
            return ToolResponse(text, ToolOutcome.BAD_ARGUMENTS)
        began = self._clock.now()
        found = await asyncio.to_thread(self._index.search, query, self._config.top_k)  # the loop must not stand still
        texts = [f"[{place}] {self._passages[number]}" for place, (number, _) in enumerate(found, 1)]
        whole = "\n\n".join(texts) or NOTHING_FOUND
        text, cut = cut_text(whole, self._config.max_output_chars, keep=Keep(self._config.keep_output))
        size = len(whole.encode("utf-8", "replace"))
        return ToolResponse(text, ToolOutcome.OK, cut, size, run_s=self._clock.now() - began)

    async def branch(self, trajectory_id: str, branches: Sequence[str]) -> None:
        """Nothing to fork."""

    async def calc_reward(self, trajectory_id: str) -> float | None:
        """None: finding something is worth nothing by itself."""
        return None

    async def release(self, trajectory_id: str) -> None:
        """Nothing to release."""


def _read(config: SearchConfig) -> list[_Passage]:
    found: list[_Passage] = []
    path = Path(config.corpus)
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if not line.strip():
                    continue
                if len(found) == config.max_documents:
                    raise ConfigError(f"{path}: has more lines than max_documents, which is {config.max_documents}")
                found.append(_passage(line, f"{path}:{number}", config))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from None
    return found


def _passage(line: bytes, where: str, config: SearchConfig) -> _Passage:
    try:
        value = json.loads(line)
    except ValueError as error:
        raise ConfigError(f"{where}: is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise ConfigError(f"{where}: must be an object")
    return _Passage(_text(value, config.title_field, "", where), _text(value, config.text_field, None, where))


def _text(value: dict[str, Any], name: str, default: str | None, where: str) -> str:
    found = value.get(name, default)
    if not isinstance(found, str):
        raise ConfigError(f"{where}: {name} is {str(found)[:40]!r}, must be a text")
    return found
