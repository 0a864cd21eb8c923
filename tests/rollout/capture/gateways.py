"""Gateways for tests: a real server on loopback, a scripted engine with the real tokenizer, OpenAI's own client."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any

from openai import AsyncOpenAI

from rollout.capture import CaptureGateway, CaptureSettings
from rollout.testing import Script, ScriptedEngine
from rollout.tokens import ChatTemplate, HubTokenizer

TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": "add",
            "description": "Adds.",
            "parameters": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}},
        },
    }
]
CALL = 'Let me see.\n<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>'
QUESTION: list[Any] = [{"role": "user", "content": "What is 1 + 2?"}]


@contextlib.asynccontextmanager
async def scripted(
    tokenizer: HubTokenizer,
    chat: ChatTemplate,
    turns: Sequence[str | Exception] | Script,
    *,
    delay_s: float = 0.0,
    max_model_tokens: int = 8192,
    **settings: Any,
) -> AsyncIterator[tuple[CaptureGateway, ScriptedEngine]]:
    """A gateway on a free port; `settings` are those of the gateway."""
    engine = ScriptedEngine(tokenizer, turns, vocab_size=49152, delay_s=delay_s, max_model_tokens=max_model_tokens)
    values: dict[str, Any] = {"listen": "127.0.0.1:0"} | settings
    async with engine, CaptureGateway(engine, chat, CaptureSettings(**values)) as gateway:
        yield gateway, engine


@contextlib.asynccontextmanager
async def client(gateway: CaptureGateway, trajectory_id: str = "t", **options: Any) -> AsyncIterator[AsyncOpenAI]:
    """OpenAI's client of one trajectory, without its own retries."""
    values: dict[str, Any] = {"api_key": "unused", "max_retries": 0, "timeout": 30.0} | options
    async with AsyncOpenAI(base_url=gateway.base_url(trajectory_id), **values) as openai:
        yield openai
