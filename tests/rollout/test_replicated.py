"""Several engines as one, with real engines in this process: placement, loss, return, and weights."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from fairbox.errors import FieldErrors
from rollout.engines import (
    DiskWeights,
    EngineUnavailable,
    GenerationRequest,
    Interrupt,
    ReplicatedEngine,
    SamplingParams,
    VersionSpan,
    WeightSource,
)
from rollout.engines.local.engine import TransformersEngine
from rollout.engines.replicas import placement as replicas
from tests.rollout.engine_contract import CLOSE, LONG, difference, plain_model, request


@pytest.fixture(autouse=True)
def _fast_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in (("PROBE_EVERY_S", 0.2), ("PROBE_BACKOFF_S", 0.05), ("PROBE_BACKOFF_MAX_S", 0.2)):
        monkeypatch.setattr(replicas, name, seconds)


def tiny(folder: Path, version: str = "first") -> TransformersEngine:
    return TransformersEngine(folder, max_model_tokens=1024, weight_version=version)


async def states(engine: ReplicatedEngine, *wanted: bool) -> None:
    async with asyncio.timeout(60):
        while [view.up for view in engine.replicas()] != list(wanted):
            await asyncio.sleep(0.01)


def on(trajectory_id: str, ids: tuple[int, ...], max_new_tokens: int = 4) -> GenerationRequest:
    asked = request(ids, max_new_tokens=max_new_tokens)
    return GenerationRequest(asked.request_id, trajectory_id, ids, asked.params, queue_timeout_s=60)


async def test_trajectories_stay_on_their_replica_whose_cache_has_their_prefix(tiny_dir: Path) -> None:
    async with ReplicatedEngine({"a": tiny(tiny_dir), "b": tiny(tiny_dir)}) as engine:
        for name in ("t1", "t2"):
            first = await engine.generate(on(name, (1, 2, 3, len(name))))
            second = await engine.generate(on(name, (1, 2, 3, len(name), *first.ids, 9)))
            assert second.cached_tokens == 4 + len(first.ids) - 1
        assert engine.statistics().finished == 4
        assert (engine.vocab_size, engine.max_model_tokens, engine.weight_version) == (49152, 1024, "first")
        assert engine.model_name == tiny_dir.name
        with pytest.raises(FieldErrors, match="input_ids"):
            await engine.generate(on("t1", (99999,)))
        assert sum(view.placed for view in engine.replicas()) == 4
        assert [view.load for view in engine.replicas()] == [0, 0]
    with pytest.raises(EngineUnavailable, match="closed"):
        await engine.generate(on("t1", (1,)))


async def test_turns_of_a_replica_that_dies_are_sampled_again_on_another(tiny_dir: Path) -> None:
    engines = {"a": tiny(tiny_dir), "b": tiny(tiny_dir)}
    async with ReplicatedEngine(engines) as engine:
        wanted = [on(f"t{number}", (number + 1, 5, 7), LONG) for number in range(6)]
        tasks = [asyncio.ensure_future(engine.generate(each)) for each in wanted]
        async with asyncio.timeout(60):
            while engines["a"].statistics().running < 3:
                await asyncio.sleep(0.01)
        await engines["a"].__aexit__(None, None, None)  # its model is gone, and its turns with it
        results = await asyncio.gather(*tasks)
        assert [view.up for view in engine.replicas()] == [False, True]
        assert [view.placed for view in engine.replicas()] == [3, 6]
        for name in ("t0", "t1", "t9"):
            await engine.generate(on(name, (1,)))
    plain = plain_model(tiny_dir)
    for asked, result in zip(wanted, results, strict=True):
        assert len(result.ids) == LONG
        assert difference(plain, asked.input_ids, result) < CLOSE


async def test_replica_that_comes_later_gets_the_wanted_weights_first(
    tiny_dir: Path, other_tiny_dir: Path, tmp_path: Path
) -> None:
    late = tmp_path / "late"
    async with ReplicatedEngine({"a": tiny(tiny_dir), "b": tiny(late)}) as engine:
        await states(engine, True, False)
        await engine.update_weights(DiskWeights(other_tiny_dir), version="second")
        shutil.copytree(tiny_dir, tmp_path / "copying")
        (tmp_path / "copying").rename(late)
        await states(engine, True, True)
        for trajectory_id in ("t", "u"):
            asked = on(trajectory_id, (1, 2, 3), 8)
            result = await engine.generate(asked)
            assert result.versions == (VersionSpan("second", 0, 8),)
            assert difference(plain_model(other_tiny_dir), asked.input_ids, result) < CLOSE
        assert [view.placed for view in engine.replicas()] == [1, 1]


async def test_update_that_fails_everywhere_changes_nothing(tiny_dir: Path, tmp_path: Path) -> None:
    async with ReplicatedEngine({"a": tiny(tiny_dir), "b": tiny(tiny_dir)}) as engine:
        with pytest.raises(EngineUnavailable, match="the weights were not replaced"):
            await engine.update_weights(DiskWeights(tmp_path / "absent"), version="second")
        assert engine.weight_version == "first"
        assert [view.up for view in engine.replicas()] == [True, True]
        result = await engine.generate(on("t", (1,)))
        assert result.versions == (VersionSpan("first", 0, 4),)


async def test_an_update_waits_for_a_replica_that_comes_back(tiny_dir: Path, other_tiny_dir: Path) -> None:
    class Away(TransformersEngine):
        away = False

        async def check_health(self, *, timeout_s: float = 5.0) -> str:
            if self.away:
                raise EngineUnavailable("nobody listens")
            return await super().check_health(timeout_s=timeout_s)

        async def update_weights(self, source: WeightSource, *, version: str, timeout_s: float = 600.0) -> None:
            await self.check_health()
            await super().update_weights(source, version=version, timeout_s=timeout_s)

        async def pause(self, mode: Interrupt | None = None, *, timeout_s: float = 600.0) -> None:
            await self.check_health()
            await super().pause(mode, timeout_s=timeout_s)

    only = Away(tiny_dir, max_model_tokens=1024, weight_version="first")
    async with ReplicatedEngine({"a": only}) as engine:
        only.away = True  # nobody has noticed yet
        pausing = asyncio.ensure_future(engine.pause())
        await states(engine, False)
        only.away = False
        await pausing
        only.away = True
        await states(engine, False)
        updating = asyncio.ensure_future(engine.update_weights(DiskWeights(other_tiny_dir), version="second"))
        await asyncio.sleep(0.2)
        assert not updating.done()
        only.away = False
        await updating
        await engine.resume()
        assert (await engine.generate(on("t", (1,)))).versions == (VersionSpan("second", 0, 4),)
        only.away = True
        with pytest.raises(EngineUnavailable, match=r"no replica answers|nobody listens"):
            await engine.update_weights(DiskWeights(tiny_dir), version="third", timeout_s=0.3)


async def test_paused_replicas_let_turns_wait(tiny_dir: Path) -> None:
    async with ReplicatedEngine({"a": tiny(tiny_dir), "b": tiny(tiny_dir)}) as engine:
        await engine.pause()
        task = asyncio.ensure_future(engine.generate(on("t", (1,))))
        async with asyncio.timeout(60):
            while not any(view.load for view in engine.replicas()):
                await asyncio.sleep(0.01)
        assert not task.done()
        await engine.resume()
        assert len((await task).ids) == 4


async def test_no_replica_is_an_error_with_every_reason(tiny_dir: Path, tmp_path: Path) -> None:
    with pytest.raises(EngineUnavailable, match=r"no replica answers: a: .*; b: "):
        async with ReplicatedEngine({"a": tiny(tmp_path / "x"), "b": tiny(tmp_path / "y")}):
            pass
    with pytest.raises(FieldErrors, match="replicas is empty"):
        ReplicatedEngine({})
    engines = {"a": tiny(tiny_dir)}
    async with ReplicatedEngine(engines) as engine:
        await engines["a"].__aexit__(None, None, None)
        params = SamplingParams(max_new_tokens=1)
        with pytest.raises(EngineUnavailable, match="no replica was ready in time: a is down: the engine is closed"):
            await engine.generate(GenerationRequest("r", "t", (1,), params, queue_timeout_s=0.3))


async def test_replica_with_other_weights_and_no_folder_to_load_them_from_stays_out(tiny_dir: Path) -> None:
    async with ReplicatedEngine({"a": tiny(tiny_dir), "b": tiny(tiny_dir, "other")}) as engine:
        assert sorted(view.up for view in engine.replicas()) == [False, True]
        (down,) = (view for view in engine.replicas() if not view.up)
        assert "in no folder" in down.last_error
