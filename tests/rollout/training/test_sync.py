"""Weights on their way to the engine: which folders are there when, and who may still read them."""

from __future__ import annotations

import asyncio
import shutil
import uuid
from pathlib import Path

import pytest

from rollout.engines import EngineUnavailable, GenerationRequest, ReplicatedEngine, SamplingParams
from rollout.engines.replicas import placement as replicas

torch = pytest.importorskip("torch", reason="torch is not installed (extra `engine`)")

from safetensors.torch import load_file  # noqa: E402 - needs torch

from rollout.engines.local.engine import TransformersEngine  # noqa: E402
from rollout.engines.weights import DiskWeights  # noqa: E402
from rollout.training import Policy, PolicySettings  # noqa: E402
from rollout.training.learner.sync import WeightSync, version_name  # noqa: E402


@pytest.fixture(autouse=True)
def _fast_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in (("PROBE_EVERY_S", 0.1), ("PROBE_BACKOFF_S", 0.05), ("PROBE_BACKOFF_MAX_S", 0.2)):
        monkeypatch.setattr(replicas, name, seconds)


def engine(model_dir: Path) -> TransformersEngine:
    return TransformersEngine(model_dir, max_batch=1, max_model_tokens=64)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


async def test_a_server_that_was_started_again_gets_the_weights_of_now(mini_dir: Path, tmp_path: Path) -> None:
    servers = {"a": engine(mini_dir), "b": engine(mini_dir)}
    async with ReplicatedEngine(servers) as both:
        sync = WeightSync(both, Policy.load(mini_dir, PolicySettings()), folder=tmp_path / "weights")
        for steps in (0, 1):
            await sync.push(steps)
        await servers["b"].update_weights(DiskWeights(mini_dir), version="initial")  # as one that is started has
        async with asyncio.timeout(60):
            while servers["b"].weight_version != version_name(1):
                await asyncio.sleep(0.01)
        assert names(tmp_path / "weights") == [version_name(1)]
        await sync.push(1)  # again, for its caches
        await sync.close()
        assert not names(tmp_path / "weights")


async def test_weights_of_another_run_are_not_taken_for_those_of_this_one(tiny_dir: Path, other_tiny_dir: Path) -> None:
    """A server that was there before has some by the same name."""
    params, found = SamplingParams(temperature=0, max_new_tokens=4), []
    async with TransformersEngine(other_tiny_dir, max_model_tokens=64, weight_version=version_name(0)) as one:
        sync = WeightSync(one, Policy.load(tiny_dir, PolicySettings()), folder=None)
        for _ in range(2):
            found.append(await one.generate(GenerationRequest(uuid.uuid4().hex, "t", (1, 2, 3), params)))
            await sync.ensure(0)
    async with TransformersEngine(tiny_dir, max_model_tokens=64) as one:
        wanted = await one.generate(GenerationRequest(uuid.uuid4().hex, "t", (1, 2, 3), params))
    assert found[0].ids != found[1].ids == wanted.ids


def test_weights_for_an_engine_are_in_the_type_that_is_computed_in(mini_dir: Path, tmp_path: Path) -> None:
    written = {}
    for dtype in ("float32", "bfloat16"):
        policy = Policy.load(mini_dir, PolicySettings(dtype=dtype))
        for for_engine in (False, True):
            folder = tmp_path / f"{dtype}-{for_engine}"
            policy.write(folder, for_engine=for_engine)
            written[dtype, for_engine] = load_file(folder / "model.safetensors")
    exact = written["float32", False]
    for asked, found in written.items():
        kind = torch.bfloat16 if asked == ("bfloat16", True) else torch.float32
        assert found.keys() == exact.keys()
        assert all(torch.equal(found[name], exact[name].to(kind)) for name in exact)


class Copied:
    """A trained model whose weights are those of a folder, or half of them."""

    def __init__(self, model_dir: Path) -> None:
        self.model_dir = model_dir
        self.whole = True

    def write(self, folder: Path, *, for_engine: bool = False) -> None:
        assert for_engine
        shutil.copytree(self.model_dir, folder)
        if not self.whole:
            (folder / "model.safetensors").unlink()


async def test_weights_that_can_not_be_taken_leave_those_of_before(mini_dir: Path, tmp_path: Path) -> None:
    model = Copied(mini_dir)
    async with engine(mini_dir) as one:
        sync = WeightSync(one, model, folder=tmp_path)
        await sync.push(1)
        model.whole = False
        with pytest.raises(EngineUnavailable):
            await sync.push(2)
        assert one.weight_version == version_name(1)
        assert names(tmp_path) == [version_name(1)]
        model.whole = True
        await sync.push(2)
        assert names(tmp_path) == [version_name(2)]
        await sync.close()
        assert not names(tmp_path)
