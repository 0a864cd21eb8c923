"""fairbox's loop inside another trainer: the trainer's own engine samples, fairbox calls the tools and scores. Or a
rollout service plays, with what it has: then neither engine nor tools of this process are used.

Invariants: there is one result for each task, in order; it raises for no trajectory; what the service failed is played
again within a budget and then masked, and so is, at once, what can't be scored.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairbox.config import setting
from fairbox.errors import ConfigError
from rollout.engines.base import SamplingParams
from rollout.interop.engine import ClientEngine
from rollout.interop.scores import RowScorer
from rollout.interop.service import ServiceUse
from rollout.interop.settings import TrainerSettings
from rollout.interop.shared import shared_interpreter, shared_player
from rollout.loop.agent_loop import AgentLoop
from rollout.loop.groups import Schedule
from rollout.loop.limits import Limits
from rollout.loop.results import TrajectoryResult
from rollout.loop.runner import RolloutRunner
from rollout.loop.task import Task
from rollout.rewards import Reward, Sample
from rollout.tokens.chat import ChatTemplate
from rollout.tokens.settings import ChatSettings
from rollout.tools.formats.choice import check_format, find_format
from rollout.tools.toolbox import Toolbox

_TURN_TIMEOUT_S = 3600.0
"""Longest wait for one turn, updates of the weights included."""
_CHATS: dict[tuple[int, ChatSettings], tuple[Any, ChatTemplate]] = {}
"""Templates by the id of their tokenizer, which is kept too, so that no other gets its id. A process has one or two."""


@dataclass(frozen=True)
class TrainerLoopSettings(TrainerSettings):
    """Settings of fairbox's loop that every trainer may set."""

    chat: ChatSettings = setting(factory=ChatSettings, help="The chat template; the trainer's own if none is named.")
    tool_format: str = setting("auto", help="How the model writes calls; auto: as its chat template does.")
    infra_retries: int = setting(1, least=0, help="How often a trajectory that the service failed is played again.")
    service: ServiceUse = setting(factory=ServiceUse, help="A rollout service that plays, tools and rewards included.")

    def validate(self) -> None:
        """Raises ConfigError for what types can't say."""
        super().validate()
        self.chat.validate()
        check_format(self.tool_format)


class TrainerLoop:
    """`tokenizer` is the one of transformers that the trainer has loaded. Without a `scorer` nothing is scored.

    Raises ConfigError, and ChatTemplateError if the template is not append-only and `chat.rewrites` refuses that.
    """

    def __init__(
        self,
        settings: TrainerLoopSettings,
        engine: ClientEngine,
        tokenizer: Any,
        *,
        limits: Limits,
        scorer: RowScorer | None,
    ) -> None:
        self._settings = settings
        self._engine = engine
        self._limits = limits
        self._scorer = scorer
        self.chat = _chat_of(tokenizer, settings.chat)
        self._format = find_format(settings.tool_format, self.chat)
        pad = tokenizer.pad_token_id
        self.pad_token_id = int(self.chat.end_of_turn if pad is None else pad)
        """The tokenizer's padding id; if it has none, the one that ends a turn."""

    async def play(
        self, tasks: Sequence[Task], sampling: Mapping[str, Any] | None, *, concurrency: int = 1
    ) -> list[TrajectoryResult]:
        """Plays one trajectory of each task. `sampling` has the trainer's own parameters, whose -1 for `top_k` is 0
        here; None: temperature 1, nothing cut."""
        settings, given = self._settings, sampling or {}
        if settings.service.target:
            return await self._served(tasks, given)
        interpreter = await shared_interpreter(settings.tool)
        loop = AgentLoop(
            engine=self._engine,
            chat=self.chat,
            tool_format=self._format,
            tools=Toolbox([interpreter], max_parallel_calls=settings.max_parallel_calls),
            limits=self._limits,
            sampling=SamplingParams(
                temperature=float(given.get("temperature", 1.0)),
                top_p=float(given.get("top_p", 1.0)),
                top_k=max(0, int(given.get("top_k", 0))),
            ),
            queue_timeout_s=_TURN_TIMEOUT_S,
        )
        results: dict[int, TrajectoryResult] = {}
        runner = RolloutRunner(
            loop,
            None if self._scorer is None else self._score,
            lambda result, _: results.__setitem__(result.index, result),
            schedule=Schedule(concurrency=concurrency),
            retries=settings.infra_retries,
        )
        await runner.run(tasks)
        return [results[index] for index in range(len(tasks))]

    async def _served(self, tasks: Sequence[Task], given: Mapping[str, Any]) -> list[TrajectoryResult]:
        """Trajectories of the rollout service, rewards included. Raises ConfigError where it and the trainer differ."""
        if float(given.get("top_p", 1.0)) != 1.0 or int(given.get("top_k", 0)) > 0:
            raise ConfigError(
                "top_p or top_k is set, but a rollout service samples with its own: leave them at 1 and -1"
            )
        player = await shared_player(self._settings.service)
        results = await player.play(tasks, float(given.get("temperature", 1.0)))
        longest = max((len(part.response_ids) for result in results for part in result.parts), default=0)
        if (most := self._limits.max_response_tokens) is not None and longest > most:
            raise ConfigError(
                f"the rollout service gave a response of {longest} tokens, the trainer takes {most}: lower the "
                "service's limits.max_response_tokens"
            )
        return results

    async def _score(self, task: Task, result: TrajectoryResult) -> Reward:
        assert self._scorer is not None
        return await self._scorer.score(Sample.of(task, result))


def _chat_of(tokenizer: Any, settings: ChatSettings) -> ChatTemplate:
    """The verified chat template of a tokenizer, read once for a process. The trainer may have given it another one
    than its model's folder has, so what counts is the object: it is saved into a folder and read from there."""
    key = id(tokenizer), settings
    if key not in _CHATS:
        with tempfile.TemporaryDirectory(prefix="fairbox-tokenizer-") as folder:
            tokenizer.save_pretrained(folder)
            _CHATS[key] = (tokenizer, settings.load(Path(folder)))
    return _CHATS[key][1]
