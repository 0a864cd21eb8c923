"""Pauses of an engine end, whatever happens to those who asked for them."""

from __future__ import annotations

import asyncio

import pytest

from rollout.engines import EngineUnavailable
from rollout.service import engine as module
from rollout.service.engine import EngineControl
from rollout.testing import ScriptedEngine
from rollout.tokens import HubTokenizer


class Engine(ScriptedEngine):
    """Does not answer a number of calls that let it go on."""

    away = 0

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


async def going(engine: Engine) -> None:
    async with asyncio.timeout(20):
        while engine.paused:
            await asyncio.sleep(0.01)


async def test_an_engine_that_an_earlier_process_left_paused_goes_on(engine: Engine) -> None:
    await engine.pause()
    async with EngineControl(engine):
        assert not engine.paused


async def test_one_that_does_not_answer_at_the_start_is_no_reason_to_end(engine: Engine) -> None:
    engine.away = 1
    async with EngineControl(engine) as control:
        assert control.paused_s == 0


async def test_a_pause_ends_with_the_block(engine: Engine) -> None:
    async with EngineControl(engine) as control:
        await control.pause(100)
        assert engine.paused
    assert not engine.paused


async def test_an_engine_that_is_gone_is_no_reason_not_to_end(engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    async with EngineControl(engine) as control:
        await control.pause(100)
        engine.away = 1
    assert "the engine stays paused: the engine is away" in caplog.text


async def test_a_pause_that_can_not_be_ended_is_ended_later(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_AGAIN_S", 0.05)
    async with EngineControl(engine) as control:
        engine.away = 3
        await control.pause(0.05)
        await going(engine)
        assert engine.away == 0
        async with asyncio.timeout(20):
            while control.paused_s:
                await asyncio.sleep(0.01)


async def test_one_pause_takes_the_place_of_another(engine: Engine) -> None:
    async with EngineControl(engine) as control:
        await control.pause(100)
        await control.pause(0.05)
        await going(engine)
        await control.pause(100)  # and the end of the last one does not end the next
        await asyncio.sleep(0.2)
        assert engine.paused
        await control.resume()
        await control.resume()
        assert (engine.paused, control.paused_s) == (False, 0)
