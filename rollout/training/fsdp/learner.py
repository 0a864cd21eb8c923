"""A learner whose model is split over the processes of a Ray cluster, behind the interface of one.

Invariants: every call goes to all shards, and has a deadline; a shard that dies, or does not answer, ends them all with
a sentence, since no step can be made without its part; they end with whoever started them. What was written before is
whole: a run goes on from its newest checkpoint, with as many shards as it is given then.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from fairbox.errors import FairboxError
from rollout.batch import RolloutBatch
from rollout.ray.cluster import ray_cluster, ray_sentence
from rollout.training.fsdp.worker import LearnerPlan, Shard

NUM_CPUS = 1.0
"""Processors that Ray keeps for a shard."""
START_WITHIN_S = 900.0
"""Longest time until all have their part: placement, loading the model."""
_ANSWER_WITHIN_S = 7200.0
"""Longest time of a training step, or of writing the weights; then the run ends."""
_GRACE_S = 5.0
"""Seconds for the other shards to answer after one failed: the one that died is the reason, and those that miss it may
notice first."""


@contextlib.asynccontextmanager
async def open_shards(plan: LearnerPlan, count: int, *, address: str, out: Path) -> AsyncIterator[ShardedLearner]:
    """Starts the shards, and ends them on leaving. `address` is Ray's; `out` must be the same folder on all machines of
    the shards, as must be the model's. Raises FairboxError."""
    with ray_cluster(address, what="shards.count above 1"):
        shards = ShardedLearner(count)
        try:
            await asyncio.to_thread(shards.start, plan, out)
            yield shards
        finally:
            await asyncio.shield(asyncio.to_thread(shards.close))


class ShardedLearner:
    """Learner over shards, with the figures, checkpoints and steps of `Learner`. Its methods block; they may be called
    from any thread, one at a time."""

    def __init__(self, count: int) -> None:
        self.steps_done = 0
        self.logprobs: Any = None
        """As of `Learner`; None before the first step."""
        self.places: tuple[tuple[str, int], ...] = ()
        """(address of its machine, process) of each shard, by rank."""
        self._count = count
        self._actors: list[Any] = []
        self._group: Any = None
        self._lost = ""
        """Sentence about what ended the shards; empty while they live."""

    @property
    def policy(self) -> ShardedLearner:
        """This learner, which writes the trained model."""
        return self

    def step(self, batch: RolloutBatch) -> dict[str, float]:
        """Trains on a batch and returns its figures by name. Raises Diverged, and FairboxError if a shard is lost."""
        import ray

        figures: dict[str, float]
        figures, self.logprobs = self._call("step", ray.put(batch))
        self.steps_done += 1
        return figures

    def state(self) -> Callable[[Path], None]:
        """Function that writes what a checkpoint keeps, at the first shard."""
        return self._write_state

    def write(self, folder: Path, *, for_engine: bool = False) -> None:
        """Implements `WritableModel`."""
        self._call("write_model", folder.absolute(), for_engine)

    def start(self, plan: LearnerPlan, out: Path) -> None:
        """Starts the shards. Raises FairboxError if they can't be started in time."""
        import ray
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        until = time.monotonic() + START_WITHIN_S
        gpus = int(plan.policy.device == "cuda")
        self._place(gpus)
        for number in range(self._count):
            strategy = PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=number)
            options = {"num_cpus": NUM_CPUS, "num_gpus": gpus, "scheduling_strategy": strategy}
            self._actors.append(ray.remote(Shard).options(max_restarts=0, **options).remote())
        state = None if plan.state is None else plan.state.absolute()
        plan = replace(plan, model_dir=plan.model_dir.absolute(), state=state)
        out = out.absolute()
        marker = out / f".shards-{uuid.uuid4().hex}"
        try:
            out.mkdir(parents=True, exist_ok=True)
            marker.touch()
            seen = self._answers([actor.sees.remote(marker) for actor in self._actors], until)
        except OSError as error:
            raise FairboxError(f"{out}: can't be written: {error.strerror or error}") from None
        finally:
            marker.unlink(missing_ok=True)
        if not all(seen):
            raise FairboxError(f"out is {str(out)!r}, which is not the same folder on all machines of the shards")
        places = self._answers([actor.place.remote() for actor in self._actors], until)
        self.places = tuple((host, pid) for host, _, pid in places)
        words = {"count": self._count, "meet": f"{places[0][0]}:{places[0][1]}", "timeout_s": _ANSWER_WITHIN_S}
        joined = [actor.join.remote(plan, rank=rank, **words) for rank, actor in enumerate(self._actors)]
        self.steps_done = _result(self._answers(joined, until))

    def close(self) -> None:
        """Ends the shards. Idempotent."""
        import ray
        from ray.util.placement_group import remove_placement_group

        actors, self._actors = self._actors, []
        for actor in actors:
            ray.kill(actor)
        group, self._group = self._group, None
        if group is not None:
            remove_placement_group(group)

    def _write_state(self, path: Path) -> None:
        try:
            self._call("write_state", path.absolute())
        except FairboxError as error:
            raise OSError(str(error)) from None

    def _call(self, method: str, *words: Any) -> Any:
        """The first shard's answer, once all have answered. Raises Diverged and FairboxError."""
        if self._lost:
            raise FairboxError(self._lost)
        until = time.monotonic() + _ANSWER_WITHIN_S
        return _result(self._answers([getattr(actor, method).remote(*words) for actor in self._actors], until))

    def _place(self, gpus: int) -> None:
        import ray
        from ray.util.placement_group import placement_group

        bundle = {"CPU": NUM_CPUS, "GPU": float(gpus)}
        wanted = {name: amount for name, amount in bundle.items() if amount}
        self._group = placement_group([wanted] * self._count, strategy="PACK")
        if not self._group.wait(timeout_seconds=START_WITHIN_S):
            free = ray.available_resources()
            raise FairboxError(
                f"the Ray cluster has no room for {self._count} shards of {wanted}: free are "
                f"{free.get('CPU', 0):g} CPUs and {free.get('GPU', 0):g} GPUs"
            )

    def _answers(self, references: list[Any], until: float) -> list[Any]:
        """Answers of the shards, by rank. Raises FairboxError if one is lost or does not answer in time."""
        import ray
        from ray.exceptions import RayActorError, RayError

        pending = {reference: rank for rank, reference in enumerate(references)}
        answers: dict[int, Any] = {}
        errors: dict[int, RayError] = {}
        while pending:
            left = max(0.0, until - time.monotonic())
            done, _ = ray.wait(list(pending), num_returns=1, timeout=min(left, _GRACE_S) if errors else left)
            if not done:
                break
            rank = pending.pop(done[0])
            try:
                answers[rank] = ray.get(done[0])
                if isinstance(answers[rank], FairboxError):
                    until = min(until, time.monotonic() + _GRACE_S)  # the others may be waiting for it
            except RayError as error:
                errors[rank] = error
        if errors:
            rank, found = min(errors.items(), key=lambda each: (not isinstance(each[1], RayActorError), each[0]))
            self._lost = f"shard {rank} of the model was lost: {ray_sentence(found)}"
        elif pending and not any(isinstance(each, FairboxError) for each in answers.values()):
            self._lost = f"shard {min(pending.values())} of the model did not answer in time"
        if self._lost:
            raise FairboxError(f"{self._lost}; resume=true goes on from the newest checkpoint")
        return [answers[rank] for rank in sorted(answers)]


def _result(answers: list[Any]) -> Any:
    """The first shard's answer. Raises what the first of them that failed found."""
    for answer in answers:
        if isinstance(answer, FairboxError):
            raise answer
    return answers[0]
