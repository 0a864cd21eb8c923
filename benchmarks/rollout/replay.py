"""Trajectories whose lengths and times are known before they are played.

`draws()` reads what real trajectories took (`draws.json`: one list of turns each, a turn being sampled tokens and the
seconds of its tool call, or null where it made none) and draws from them. The engine and the tool here take that long,
say what a model would say, and cost next to nothing themselves.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rollout.engines import EngineStatistics, FinishReason, GenerationRequest, GenerationResult, VersionSpan
from rollout.tokens import HubTokenizer
from rollout.tools import Tool, ToolOutcome, ToolResponse
from rollout.tools.schema import ParameterSchema, ToolSchema

_DATA = Path(__file__).parent / "draws.json"
TOKENS_PER_S = 60.0
"""Speed of one trajectory on a GPU that serves many."""
CALL = '<tool_call>\n{"name": "code", "arguments": {"code": "print(sum(range(100)))"}}\n</tool_call>'


@dataclass(frozen=True, slots=True)
class Turn:
    """Seconds of the engine, and of the tool; None: the turn makes no call, and is the last."""

    engine_s: float
    tool_s: float | None


Played = tuple[Turn, ...]


def draws(count: int, *, seed: int) -> list[Played]:
    """So many trajectories, drawn from the real ones."""
    real: list[list[list[float | None]]] = json.loads(_DATA.read_text(encoding="utf-8"))["trajectories"]
    chosen = random.Random(seed)

    def one() -> Played:
        turns = chosen.choice(real)
        return tuple(Turn((tokens or 0.0) / TOKENS_PER_S, tool) for tokens, tool in turns)

    return [one() for _ in range(count)]


class ReplayEngine:
    """Samples the turns of `played[index]` for the trajectory whose task is number `index`, which its prompt says.

    `scale` makes time shorter. The text of a turn is always the same, so its ids are there before.
    """

    model_name = "replay"
    vocab_size = 1 << 20
    max_model_tokens = 1 << 20

    def __init__(self, tokenizer: HubTokenizer, played: Sequence[Played], end_of_turn: int, *, scale: float) -> None:
        self._played = played
        self._scale = scale
        self._call = self._result((*tokenizer.encode("Let me compute it.\n" + CALL), end_of_turn))
        self._last = self._result((*tokenizer.encode("The answer is 4950.\n#### 4950"), end_of_turn))
        self._where: dict[str, tuple[int, int]] = {}
        self._next = 0
        self._running = self._finished = 0

    def statistics(self) -> EngineStatistics:
        return EngineStatistics(running=self._running, finished=self._finished)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    async def generate(self, request: GenerationRequest) -> GenerationResult:
        """Trajectories are numbered in the order of their first turns, which is that of their tasks."""
        if request.trajectory_id not in self._where:
            self._where[request.trajectory_id] = (self._next, 0)
            self._next += 1
        index, number = self._where[request.trajectory_id]
        self._where[request.trajectory_id] = (index, number + 1)
        turn = self._played[index % len(self._played)][number]
        self._running += 1
        await asyncio.sleep(turn.engine_s * self._scale)
        self._running -= 1
        self._finished += 1
        return self._last if turn.tool_s is None else self._call

    def tool_s(self, trajectory_id: str) -> float:
        """Duration of the last turn's call, in scaled seconds."""
        index, number = self._where[trajectory_id]
        return (self._played[index % len(self._played)][number - 1].tool_s or 0.0) * self._scale

    def _result(self, ids: tuple[int, ...]) -> GenerationResult:
        return GenerationResult(ids, (-0.5,) * len(ids), FinishReason.STOP, (VersionSpan("1", 0, len(ids)),))


class ReplayTool(Tool):
    """Takes as long as the trajectory's turn says."""

    default_schema = ToolSchema(
        "code", "Runs code.", {"code": ParameterSchema("string", "Python.")}, required=("code",)
    )

    def __init__(self, engine: ReplayEngine) -> None:
        super().__init__()
        self._engine = engine

    async def execute(
        self, trajectory_id: str, arguments: Mapping[str, Any], *, time_limit_s: float | None = None
    ) -> ToolResponse:
        seconds = self._engine.tool_s(trajectory_id)
        await asyncio.sleep(seconds)
        return ToolResponse("4950", ToolOutcome.OK, run_s=seconds)
