"""A model split over two processes of a real Ray cluster learns what one process does, and ends with a sentence."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fairbox.errors import FairboxError
from rollout.batch import RolloutBatch
from rollout.loop import TrajectoryResult
from tests.limiter.ray.cluster import ray_cluster
from tests.rollout.training.conftest import TEMPERATURE
from tests.rollout.training.test_learner import EVERYTHING

torch = pytest.importorskip("torch", reason="torch is not installed (extra `engine`)")

from rollout.engines.local.decoder import load_model  # noqa: E402 - needs torch
from rollout.training import AdvantageSettings, PolicySettings  # noqa: E402
from rollout.training.fsdp import learner as fsdp_learner  # noqa: E402
from rollout.training.fsdp.learner import ShardedLearner, open_shards  # noqa: E402
from rollout.training.fsdp.worker import LearnerPlan  # noqa: E402
from rollout.training.learner.checkpoints import CheckpointStore  # noqa: E402
from rollout.training.learner.learner import Diverged, LearnerSettings  # noqa: E402
from rollout.training.learner.update import UpdateSettings  # noqa: E402

pytestmark = [pytest.mark.ray, pytest.mark.timeout(600)]

CLOSE = 1e-5
UPDATE = UpdateSettings(lr=1e-4, epochs=2, minibatches=2)
SHARDS = 2
FULL = AdvantageSettings("reinforce++")


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cluster has one processor."""
    monkeypatch.setattr(fsdp_learner, "NUM_CPUS", 0.1)


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    with ray_cluster():
        yield


def plan(
    model_dir: Path,
    policy: PolicySettings | None = None,
    advantage: AdvantageSettings = FULL,
    state: Path | None = None,
) -> LearnerPlan:
    settings = LearnerSettings(advantage, EVERYTHING, UPDATE, TEMPERATURE, max_response_tokens=16, steps=10, seed=3)
    head = advantage.estimator == "gae"
    return LearnerPlan(model_dir, policy or PolicySettings(), settings, value_head=head, reference=True, state=state)


def tensors(tree: Any) -> list[Any]:
    """Tensors of a state, except the generator's, which nothing draws from."""
    if isinstance(tree, dict):
        return [found for key in sorted(tree, key=str) if key != "rng" for found in tensors(tree[key])]
    return [tree] if isinstance(tree, torch.Tensor) else []


def saved(made: ShardedLearner, folder: Path, step: int) -> dict[str, Any]:
    store = CheckpointStore(folder, keep=9)
    store.save(step, made.state(), {})
    found = store.latest()
    assert found is not None
    return found.state


@pytest.mark.parametrize(
    ("policy", "advantage"),
    [
        (PolicySettings(micro_tokens=20), FULL),
        (PolicySettings(lora_rank=4), FULL),
        (PolicySettings(micro_tokens=20, recompute=True), AdvantageSettings("gae")),
    ],
    ids=["all weights", "adapters", "value head"],
)
async def test_two_shards_learn_what_one_process_does(
    mini_dir: Path, sampled_batch: RolloutBatch, tmp_path: Path, policy: PolicySettings, advantage: AdvantageSettings
) -> None:
    """The batch has three rows, at most two to a minibatch, so that one shard has none while the other computes."""
    both = plan(mini_dir, policy, advantage)
    alone = both.load()
    before = alone.policy.trained_state()
    poison = torch.tensor(float("nan"))
    poisoned = replace(sampled_batch, rewards=poison.expand(4), token_rewards=sampled_batch.token_rewards * poison)
    async with open_shards(both, SHARDS, address="auto", out=tmp_path) as split:
        for step in range(1, 4):
            mine, theirs = alone.step(sampled_batch), split.step(sampled_batch)
            assert theirs == pytest.approx(mine, rel=CLOSE, abs=CLOSE), step
            torch.testing.assert_close(split.logprobs, alone.logprobs, rtol=0, atol=CLOSE)
        state = saved(split, tmp_path, 3)
        split.write(tmp_path / "model")
        with pytest.raises(Diverged, match="the loss of step 4 is nan"):
            split.step(poisoned)
        kept = saved(split, tmp_path, 4)
    moved = max(float((value - before[name]).abs().max()) for name, value in alone.policy.trained_state().items())
    assert moved > 20 * CLOSE
    wanted = alone.state()
    assert [value.shape for value in tensors(state)] == [value.shape for value in tensors(wanted)]
    for one, other in zip(tensors(state), tensors(wanted), strict=True):
        torch.testing.assert_close(one.double(), other.double(), rtol=0, atol=CLOSE)
    for one, other in zip(tensors(kept["parameters"]), tensors(state["parameters"]), strict=True):
        assert torch.equal(one, other)
    written = load_model(tmp_path / "model").state_dict()
    for name, value in alone.policy.state().items():
        torch.testing.assert_close(written[name], value, rtol=0, atol=CLOSE)


async def test_a_checkpoint_goes_on_with_any_number_of_shards(
    mini_dir: Path, sampled_batch: RolloutBatch, sampled_results: list[TrajectoryResult], tmp_path: Path
) -> None:
    store = CheckpointStore(tmp_path, keep=9)
    nothing = RolloutBatch.from_results(sampled_results[3:], pad_token_id=2)
    async with open_shards(plan(mini_dir), SHARDS, address="auto", out=tmp_path) as split:
        split.step(sampled_batch)
        assert split.step(nothing)["updates"] == 0  # nobody has a row
        store.save(2, split.state(), {})
        wanted = split.step(sampled_batch)
    found = store.latest()
    assert found is not None
    again = plan(mini_dir, state=found.state_path)
    alone = again.load()
    assert alone.step(sampled_batch) == pytest.approx(wanted, rel=CLOSE, abs=CLOSE)
    async with open_shards(again, SHARDS, address="auto", out=tmp_path) as split:
        assert split.steps_done == 2
        assert split.step(sampled_batch) == wanted  # bit for bit
        state = saved(split, tmp_path, 3)
    for one, other in zip(tensors(state["parameters"]), tensors(alone.state()["parameters"]), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=CLOSE)


def test_an_address_that_is_none_is_named(mini_dir: Path, tmp_path: Path) -> None:
    """In a process of its own, which is in no cluster yet."""
    code = (
        "import asyncio, sys; from pathlib import Path; from fairbox.errors import FairboxError\n"
        "from tests.rollout.training.test_sharded import SHARDS, open_shards, plan\n"
        "async def main():\n"
        f"    made, out = plan(Path({str(mini_dir)!r})), Path({str(tmp_path)!r})\n"
        "    async with open_shards(made, SHARDS, address='here', out=out):\n"
        "        pass\n"
        "try:\n    asyncio.run(main())\nexcept FairboxError as error:\n    sys.exit(str(error))\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False)
    assert ran.stderr.strip().endswith(
        "no Ray cluster at ray_address=here: Invalid address format: here; ray_address=local starts one on this machine"
    )


def alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


async def ended(*pids: int) -> None:
    """Returns when none of them lives: Ray ends them a moment after it is told to."""
    async with asyncio.timeout(30):
        while any(map(alive, pids)):
            await asyncio.sleep(0.1)


async def test_a_shard_that_dies_ends_the_run_with_a_sentence_and_leaves_the_checkpoint(
    mini_dir: Path, sampled_batch: RolloutBatch, tmp_path: Path
) -> None:
    async with open_shards(plan(mini_dir), SHARDS, address="auto", out=tmp_path) as split:
        split.step(sampled_batch)
        state = saved(split, tmp_path, 1)
        pids = [pid for _, pid in split.places]
        assert len(pids) == 2
        os.kill(pids[1], signal.SIGKILL)
        with pytest.raises(FairboxError, match=r"shard \d of the model was lost: .*; resume=true goes on") as error:
            split.step(sampled_batch)
        assert len(str(error.value)) < 300
        with pytest.raises(FairboxError, match="was lost"):
            split.write(tmp_path / "model")
    await ended(*pids)
    found = CheckpointStore(tmp_path, keep=9).latest()
    assert found is not None
    assert all(torch.equal(one, other) for one, other in zip(tensors(found.state), tensors(state), strict=True))


async def all_free() -> None:
    """Returns when Ray counts the processor as free, a moment after those who had a part of it have ended."""
    import ray

    async with asyncio.timeout(30):
        while f"{ray.available_resources().get('CPU', 0):g}" != "1":
            await asyncio.sleep(0.1)


async def test_what_can_not_be_done_is_said_and_nothing_is_left(
    mini_dir: Path, sampled_batch: RolloutBatch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await all_free()
    with monkeypatch.context() as crowded:
        crowded.setattr(fsdp_learner, "NUM_CPUS", 64)
        crowded.setattr(fsdp_learner, "START_WITHIN_S", 2)
        with pytest.raises(FairboxError, match=r"no room for 2 shards of .*'CPU': 64.*free are 1 CPUs"):
            async with open_shards(plan(mini_dir), SHARDS, address="auto", out=tmp_path):
                pass
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(FairboxError, match="empty"):
        async with open_shards(plan(empty), SHARDS, address="auto", out=tmp_path):
            pass
    half = plan(mini_dir, PolicySettings(dtype="bfloat16"))
    async with open_shards(half, SHARDS, address="auto", out=tmp_path) as split:
        taken = tmp_path / "taken"
        taken.touch()  # a file where the folder is to be
        with pytest.raises(FairboxError, match="taken: the weights can't be written: "):
            split.write(taken)
        pids = [pid for _, pid in split.places]
        found = split.step(sampled_batch)  # nobody waits for what could not be written
    wanted = half.load().step(sampled_batch)
    assert found["updates"] == wanted["updates"] == 4
    for name in ("policy_loss", "grad_norm", "entropy"):  # three digits of bfloat16
        assert found[name] == pytest.approx(wanted[name], rel=0.05)
    await ended(*pids)
    assert not any(name.startswith(".shards") for name in os.listdir(tmp_path))  # noqa: PTH208 - names alone
