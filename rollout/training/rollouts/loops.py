"""The interface of those who play a training run's trajectories, and the loop of this process as one of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol, cast

from prometheus_client.metrics_core import Metric

from rollout.engines.weights import WeightedEngine
from rollout.envs.base import Environment
from rollout.figures import service_metrics
from rollout.loop.agent_loop import AgentLoop
from rollout.loop.results import TrajectoryResult
from rollout.loop.runner import Loop
from rollout.loop.scoring import Score
from rollout.loop.task import Task
from rollout.training.learner.sync import WeightTarget
from rollout.training.rollouts.lives import ONE_LIFE, RunLives


class TrainingLoop(Loop, Protocol):
    """Plays the trajectories of a training run, and takes its weights."""

    lives: RunLives

    @property
    def engine(self) -> WeightTarget:
        """Taker of the run's weights."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids without special tokens."""
        ...

    def score(self, environment: Environment) -> Score | None:
        """The score of the trajectories; None: they come with their rewards."""
        ...

    def at(self, temperature: float) -> Loop:
        """The same loop, sampling at another temperature; what it plays is not trained on."""
        ...

    async def drop(self, trajectory_ids: Iterable[str]) -> None:
        """Lets go of trajectories that no later life of the run will ask for."""
        ...

    def leave(self) -> None:
        """Says that the run ends here for now: a later life may ask again for what is cancelled from now on."""
        ...

    async def finish(self) -> None:
        """Ends what was left, when the run is over for good."""
        ...

    def metrics(self) -> Iterator[Metric]:
        """Figures of engine and tools."""
        ...


class OwnLoop:
    """The loop of this process, whose trajectories end with it."""

    lives = ONE_LIFE

    def __init__(self, loop: AgentLoop) -> None:
        self._loop = loop
        self.engine = cast("WeightedEngine", loop.engine)

    def decode(self, ids: Sequence[int]) -> str:
        return self._loop.chat.decode_plain(ids)

    def score(self, environment: Environment) -> Score | None:
        return environment.score

    def at(self, temperature: float) -> Loop:
        return self._loop.at(temperature)

    async def run(self, task: Task, *, index: int, seed: int | None, attempt: int = 1) -> TrajectoryResult:
        return await self._loop.run(task, index=index, seed=seed, attempt=attempt)

    async def drop(self, trajectory_ids: Iterable[str]) -> None:
        """Nothing is kept."""

    def leave(self) -> None:
        """Nothing is kept."""

    async def finish(self) -> None:
        """Nothing is left."""

    def metrics(self) -> Iterator[Metric]:
        yield from service_metrics(self.engine.statistics(), self._loop.tools.statistics())
