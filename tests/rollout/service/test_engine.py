"""Pauses of an engine end, whatever happens to those who asked for them, and its weights outlive its process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from fairbox.errors import FieldError, FieldErrors
from rollout.engines import DiskWeights, EngineUnavailable, WeightSource
from rollout.journal import Durability
from rollout.service import engine as module
from rollout.service.engine import EngineControl
from rollout.service.store import TrajectoryStore
from rollout.testing import ScriptedEngine
from rollout.tokens import HubTokenizer


class Engine(ScriptedEngine):
    """Does not answer a number of calls that let it go on."""

    away = 0
    updates = 0

    async def update_weights(self, source: WeightSource, *, version: str, timeout_s: float = 600.0) -> None:
        self.updates += 1
        if not isinstance(source, DiskWeights) or not source.path.exists():
            raise FieldErrors([FieldError("source.path", "is no folder")])
        await super().update_weights(source, version=version, timeout_s=timeout_s)

    async def resume(self) -> None:
        if self.away:
            self.away -= 1
            raise EngineUnavailable("the engine is away")
        await super().resume()

    @property
    def paused(self) -> bool:
        return not self._open.is_set()


@pytest.fixture
def engine(tokenizer: HubTokenizer) -> Engine:
    return Engine(tokenizer, ["done"], vocab_size=49152)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[TrajectoryStore]:
    async with TrajectoryStore(tmp_path, Durability.PROCESS) as opened:
        yield opened


async def going(engine: Engine) -> None:
    async with asyncio.timeout(20):
        while engine.paused:
            await asyncio.sleep(0.01)


async def test_an_engine_that_an_earlier_process_left_paused_goes_on(engine: Engine, store: TrajectoryStore) -> None:
    await engine.pause()
    async with EngineControl(engine, store):
        assert not engine.paused


async def test_one_that_does_not_answer_at_the_start_is_no_reason_to_end(
    engine: Engine, store: TrajectoryStore
) -> None:
    engine.away = 1
    async with EngineControl(engine, store) as control:
        assert control.paused_s == 0


async def test_a_pause_ends_with_the_block(engine: Engine, store: TrajectoryStore) -> None:
    async with EngineControl(engine, store) as control:
        await control.pause(100)
        assert engine.paused
    assert not engine.paused


async def test_an_engine_that_is_gone_is_no_reason_not_to_end(
    engine: Engine, store: TrajectoryStore, caplog: pytest.LogCaptureFixture
) -> None:
    async with EngineControl(engine, store) as control:
        await control.pause(100)
        engine.away = 1
    assert "the engine stays paused: the engine is away" in caplog.text


async def test_a_pause_that_can_not_be_ended_is_ended_later(
    engine: Engine, store: TrajectoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_AGAIN_S", 0.05)
    async with EngineControl(engine, store) as control:
        engine.away = 3
        await control.pause(0.05)
        await going(engine)
        assert engine.away == 0
        async with asyncio.timeout(20):
            while control.paused_s:
                await asyncio.sleep(0.01)


async def test_one_pause_takes_the_place_of_another(engine: Engine, store: TrajectoryStore) -> None:
    async with EngineControl(engine, store) as control:
        await control.pause(100)
        await control.pause(0.05)
        await going(engine)
        await control.pause(100)  # and the end of the last one does not end the next
        await asyncio.sleep(0.2)
        assert engine.paused
        await control.resume()
        await control.resume()
        assert (engine.paused, control.paused_s) == (False, 0)


async def test_a_process_that_was_started_again_has_the_weights_of_before(
    engine: Engine, store: TrajectoryStore, tokenizer: HubTokenizer, tmp_path: Path
) -> None:
    async with EngineControl(engine, store) as control:
        assert await store.weights() is None
        for version in ("step-1", "step-2"):
            await control.update(tmp_path, version)
    again = Engine(tokenizer, ["done"], vocab_size=49152)
    async with EngineControl(again, store):
        assert (again.weight_version, again.updates) == ("step-2", 1)
    async with EngineControl(again, store):
        assert again.updates == 1  # servers that went on have them still


async def test_weights_that_are_gone_are_said_and_are_no_reason_to_end(
    engine: Engine, store: TrajectoryStore, tokenizer: HubTokenizer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "weights"
    folder.mkdir()
    async with EngineControl(engine, store) as control:
        await control.update(folder, "step-1")
    folder.rmdir()
    again = Engine(tokenizer, ["done"], vocab_size=49152)
    async with EngineControl(again, store) as control:
        assert f"weights 'step-1' can't be restored, the engine has {again.weight_version!r}: " in caplog.text
        with pytest.raises(FieldErrors):
            await control.update(folder, "step-2")  # which is not kept
    kept = await store.weights()
    assert kept is not None
    assert kept.version == "step-1"


async def test_the_age_of_weights_is_known_over_processes(
    engine: Engine, store: TrajectoryStore, tmp_path: Path
) -> None:
    async with EngineControl(engine, store) as control:
        assert control.age("scripted") == control.age("whatever it has") == 0
        for version in ("1", "2", "2", "3"):
            await control.update(tmp_path, version)
        ages = {each: control.age(each) for each in ("scripted", "1", "2", "3", "unheard of")}
        assert ages == {"scripted": 3, "1": 2, "2": 1, "3": 0, "unheard of": None}
    async with EngineControl(engine, store) as control:
        assert {each: control.age(each) for each in ages} == ages
