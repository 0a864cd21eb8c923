"""Word problems with a code interpreter, served to trainers that speak OpenEnv.

    python openenv_server.py data=train.jsonl tool.executor=127.0.0.1:50051 tool.limiter=127.0.0.1:50052

An action is `{"code": ...}`, which runs in the executor, or `{"answer": ...}`, which ends the episode with its reward.

Invariants: an answer is scored once; what a service fails is an error of the step, and never a reward; the true answer
is in no observation and in no state.
"""

from __future__ import annotations

import asyncio
import random
import sys
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn
from openenv.core.env_server import Action, Environment, Observation, State, create_fastapi_app
from pydantic import Field

from fairbox.config import load, setting
from fairbox.errors import FairboxError
from rollout.data import read_rows
from rollout.interop.scores import RowScorer
from rollout.interop.settings import TrainerSettings
from rollout.interop.shared import SharedTools
from rollout.rewards import Sample
from rollout.tools.formats.calls import ToolCall

_ASK = "End with an answer that has #### and the number, like this: #### 42"


@dataclass(frozen=True)
class ServerSettings(TrainerSettings):
    """The server's settings."""

    data: Path | None = setting(None, help="GSM8K's JSONL or parquet, or verl's; none: a few built-in problems.")
    port: int = setting(8000, least=0, most=65535, help="Port on loopback; whoever reaches it may run programs.")
    max_episodes: int = setting(64, least=1, help="Episodes at once.")


class ProblemAction(Action):  # type: ignore[misc]
    """One of both."""

    code: str | None = Field(None, description="Python to run; its output is observed.")
    answer: str | None = Field(None, description="The last answer, which is scored.")


class ProblemObservation(Observation):  # type: ignore[misc]
    """A problem, or what came of code."""

    prompt: str = ""
    output: str = ""
    outcome: str = ""
    """`ok`, `program_error`, `time_limit` and so on, for code."""


class WordProblems(Environment):  # type: ignore[misc]
    """One client's episodes, one after the other."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self, rows: Sequence[Any], tools: SharedTools, scorer: RowScorer) -> None:
        super().__init__()
        self._rows = rows
        self._tools = tools
        self._scorer = scorer
        self._truth: str | None = None
        """None: there is no episode that goes on."""
        self._state = State()
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def state(self) -> Any:
        return self._state

    async def reset_async(
        self, seed: int | None = None, episode_id: str | None = None, index: int | None = None, **_: Any
    ) -> Any:
        """Problem number `index`, or one that `seed` draws. Raises ValueError."""
        if index is not None and not 0 <= index < len(self._rows):
            raise ValueError(f"index is {index}, must be 0 to {len(self._rows) - 1}")
        await self._release()
        row = self._rows[random.Random(seed).randrange(len(self._rows)) if index is None else index]
        self._loop, self._truth = asyncio.get_running_loop(), row.ground_truth
        # What a client calls its episode may be another's name for its own.
        self._state = State(episode_id=episode_id or "", trajectory=uuid.uuid4().hex)
        return ProblemObservation(prompt=f"{row.question.strip()}\n{_ASK}")

    async def step_async(self, action: Any, timeout_s: float | None = None, **_: Any) -> Any:
        """Raises InfraError and NotScored for what a service failed, ValueError without an episode."""
        if self._truth is None:
            raise ValueError("there is no episode that goes on: reset first")
        if (action.code is None) == (action.answer is None):
            raise ValueError("an action must have code or answer, and not both")
        self._state.step_count += 1
        if action.answer is not None:
            reward = await self._scorer.score(Sample(action.answer, self._truth))
            await self._release()
            return ProblemObservation(reward=reward.value, done=True)
        call = ToolCall("code_interpreter", {"code": action.code}, action.code)
        async with asyncio.timeout(timeout_s):
            (response,) = await self._tools.answer(self._state.trajectory, [call])
        return ProblemObservation(output=response.text, outcome=str(response.outcome))

    def close(self) -> None:
        """Called in a thread of the server's, or in its loop, when the client has gone."""
        if self._loop is not None and self._truth is not None:
            asyncio.run_coroutine_threadsafe(self._release(), self._loop)

    def reset(self, *_: Any, **__: Any) -> Any:
        """The server calls `reset_async`."""
        raise NotImplementedError

    def step(self, *_: Any, **__: Any) -> Any:
        """The server calls `step_async`."""
        raise NotImplementedError

    async def _release(self) -> None:
        if self._truth is not None:
            self._truth = None
            await self._tools.release(self._state.trajectory)


def main(argv: Sequence[str]) -> None:
    settings = load(
        ServerSettings, prefix="FAIRBOX_OPENENV", prog="openenv_server", description=__doc__ or "", argv=argv
    )
    rows = list(read_rows(settings.data))
    tools = SharedTools(settings.tool, max_parallel_calls=settings.max_parallel_calls)
    scorer = RowScorer(settings.reward, executor=settings.tool.executor)
    app = create_fastapi_app(
        lambda: WordProblems(rows, tools, scorer),
        ProblemAction,
        ProblemObservation,
        max_concurrent_envs=settings.max_episodes,
    )
    uvicorn.run(app, host="127.0.0.1", port=settings.port, log_level="warning")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except FairboxError as error:
        sys.exit(f"openenv_server: {error}")
