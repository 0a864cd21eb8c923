"""Public test kit: an engine that says what a script says, with a real tokenizer, and a tool that answers so.

Use them where turns and answers must be known: loops, dumps, trainers. The engine checks requests as real engines do,
and what it returns has the shape and the invariants of a real engine's results; its logprobs are made up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

from rollout.engines.base import (
    EngineStatistics,
    FinishReason,
    GenerationRequest,
    GenerationResult,
    VersionSpan,
    check_request,
)
from rollout.engines.weights import Interrupt, WeightSource
from rollout.tokens.tokenizer import HubTokenizer
from rollout.tools.base import Tool, ToolOutcome, ToolResponse
from rollout.tools.schema import ParameterSchema, ToolSchema

Script = Callable[[GenerationRequest, int], str | Exception]
"""(request, turn of its trajectory from 0) -> what is said, or what is raised."""

LOGPROB = -0.5
"""Logprob of every token; exact in float32."""


class ScriptedEngine:
    """`ScriptedEngine(tokenizer, ["first turn", "second turn"])`, or a `Script` for turns that depend on the request.

    A turn ends with the first of the request's stop tokens, unless `max_new_tokens` cuts it off before. After its last
    turn a script answers with nothing but the stop token. `delay_s` is slept before each turn.
    """

    model_name = "scripted"

    def __init__(
        self,
        tokenizer: HubTokenizer,
        turns: Sequence[str | Exception] | Script,
        *,
        vocab_size: int,
        max_model_tokens: int = 8192,
        delay_s: float = 0.0,
        weight_version: str = "scripted",
    ) -> None:
        self._tokenizer = tokenizer
        self._script = turns if callable(turns) else _listed(turns)
        self._delay_s = delay_s
        self._version = weight_version
        self._turns: dict[str, int] = {}
        self._open = asyncio.Event()
        self._open.set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._running = self._finished = self._aborted = 0
        self.vocab_size = vocab_size
        self.max_model_tokens = max_model_tokens
        self.requests: list[GenerationRequest] = []
        """Every request that was accepted, in order."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        return None

    async def generate(self, request: GenerationRequest) -> GenerationResult:
        check_request(request, vocab_size=self.vocab_size, max_model_tokens=self.max_model_tokens)
        turn = self._turns.get(request.trajectory_id, 0)
        self._turns[request.trajectory_id] = turn + 1
        self.requests.append(request)
        await self._open.wait()
        self._running += 1
        self._idle.clear()
        try:
            await asyncio.sleep(self._delay_s)
            said = self._script(request, turn)
            if isinstance(said, Exception):
                raise said
        except BaseException:
            self._aborted += 1
            raise
        finally:
            self._running -= 1
            if not self._running:
                self._idle.set()
        self._finished += 1
        return self._result(request, said)

    def statistics(self) -> EngineStatistics:
        return EngineStatistics(running=self._running, finished=self._finished, aborted=self._aborted)

    @property
    def weight_version(self) -> str:
        return self._version

    async def pause(self, mode: Interrupt | None = None, *, timeout_s: float = 600.0) -> None:
        """Lets the turns that run end, whatever the mode: they take no longer than `delay_s`."""
        self._open.clear()
        async with asyncio.timeout(timeout_s):
            await self._idle.wait()

    async def resume(self) -> None:
        self._open.set()

    async def update_weights(self, source: WeightSource, *, version: str, timeout_s: float = 600.0) -> None:
        """From now on turns say this version."""
        self._version = version

    async def check_health(self, *, timeout_s: float = 5.0) -> str:
        return self._version

    def _result(self, request: GenerationRequest, said: str) -> GenerationResult:
        whole = self._tokenizer.encode(said) + request.params.stop_token_ids[:1]
        ids = whole[: request.params.max_new_tokens]
        stopped = bool(request.params.stop_token_ids) and len(ids) == len(whole)
        return GenerationResult(
            ids=ids,
            logprobs=(LOGPROB,) * len(ids),
            finish=FinishReason.STOP if stopped else FinishReason.LENGTH,
            versions=(VersionSpan(self._version, 0, len(ids)),),
        )


def _listed(turns: Sequence[str | Exception]) -> Script:
    def say(request: GenerationRequest, turn: int) -> str | Exception:
        return turns[turn] if turn < len(turns) else ""

    return say


class ScriptedTool(Tool):
    """Answers `answer(arguments)`: a text, a whole response, or an exception that is raised.

    `calls` and `events` show what happened: `create ID`, `execute ID`, `release ID`.
    """

    default_schema = ToolSchema(
        "echo", "Answers.", {"text": ParameterSchema("string", "What to say.")}, required=("text",)
    )

    def __init__(
        self,
        answer: Callable[[Mapping[str, Any]], str | ToolResponse | Exception],
        *,
        schema: ToolSchema | None = None,
        reward: float | Mapping[str, float] | None = None,
        parallel: bool = True,
    ) -> None:
        super().__init__(schema=schema)
        self.parallel = parallel
        self.calls: list[Mapping[str, Any]] = []
        self.events: list[str] = []
        self.running = 0
        self.most_running = 0
        self._answer = answer
        self._reward = reward

    async def create(self, trajectory_id: str, **options: Any) -> None:
        self.events.append(f"create {trajectory_id}")

    async def execute(
        self, trajectory_id: str, arguments: Mapping[str, Any], *, time_limit_s: float | None = None
    ) -> ToolResponse:
        self.events.append(f"execute {trajectory_id}")
        self.calls.append(arguments)
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            await asyncio.sleep(0)
            answer = self._answer(arguments)
        finally:
            self.running -= 1
        if isinstance(answer, Exception):
            raise answer
        return ToolResponse(answer, ToolOutcome.OK) if isinstance(answer, str) else answer

    async def calc_reward(self, trajectory_id: str) -> float | Mapping[str, float] | None:
        return self._reward

    async def release(self, trajectory_id: str) -> None:
        self.events.append(f"release {trajectory_id}")
