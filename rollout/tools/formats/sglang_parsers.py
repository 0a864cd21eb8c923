"""Tool calls in any format that sglang's own parsers read: `sglang:kimi_k2`, `sglang:minimax-m2`, ...

Needs the package `sglang` in this process (no server), whose import takes seconds. Its parsers drop what they can't
read; a turn in which they see a call and read none is answered as one malformed call, without saying where. Closed
`<think>` blocks are left out first. How long sglang's parsers take for hostile text is not bounded here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from fairbox.errors import ConfigError
from rollout.tools.formats.calls import MalformedCall, ToolCall, bounded, checked_call, without_thoughts

_UNREADABLE = "the call can't be read in the format that the prompt asks for"


class SglangFormat:
    """One of sglang's parsers. Raises ConfigError when there is none of that name, or no sglang."""

    def __init__(self, parser: str) -> None:
        try:
            from sglang.srt.entrypoints.openai.protocol import Tool
            from sglang.srt.environ import envs
            from sglang.srt.function_call.function_call_parser import FunctionCallParser
        except ImportError as error:
            raise ConfigError(f"tool_format is 'sglang:{parser}', but sglang can't be imported: {error}") from None
        known = sorted(FunctionCallParser.ToolCallParserEnum)
        if parser not in known:
            raise ConfigError(f"tool_format is 'sglang:{parser}', but sglang's parsers are: {', '.join(known)}")
        # Else a call of a tool that does not exist is dropped, and the model is never told.
        envs.SGLANG_FORWARD_UNKNOWN_TOOLS.set(True)
        self.name = f"sglang:{parser}"
        self._parser = parser
        self._make_tool = Tool.model_validate
        self._make_parser = FunctionCallParser

    def parse(self, text: str, tools: Sequence[Mapping[str, Any]] = ()) -> tuple[ToolCall | MalformedCall, ...]:
        said = without_thoughts(text)
        try:
            # Parsers hold the state of one stream, so each turn gets its own.
            parser = self._make_parser([self._make_tool(dict(tool)) for tool in tools], self._parser)
            if not parser.has_tool_call(said):
                return ()
            items = parser.parse_non_stream(said)[1]
        except Exception:  # a parser of unknown quality on text of unknown quality
            return (MalformedCall(_UNREADABLE, said),)
        return bounded(_call(item.name, item.parameters) for item in items) or (MalformedCall(_UNREADABLE, said),)


def _call(name: str | None, parameters: str) -> ToolCall | MalformedCall:
    try:
        arguments = json.loads(parameters) if parameters else {}
    except (ValueError, RecursionError) as error:
        return MalformedCall(f"its JSON is wrong: {error}", parameters, name or "")
    return checked_call({"name": name, "arguments": arguments}, parameters)
