"""Each input of the table, sent to real services; then everything that `services` says has to hold.

Small inputs are sent several at a time. If something does not hold then, each of them is sent to new services alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator
from typing import Any

import pytest
from google.protobuf.message import Message

from executor_service.v1 import executor_pb2 as pb
from tests.hostile.inputs import INPUTS, Input
from tests.hostile.services import GROWTH, OURS, Services, infra, started

_TOGETHER = 10
_MOST_S = 2.0
"""Longest answer of a health service, on a machine that does other things as well."""

_ROUNDS = 8
"""Number of times that an input which leaves memory behind is sent."""

_AGAIN = 1.01
"""Largest allowed growth when it is sent again: a leak shows every time, however small it is; memory that the allocator
keeps shows only a few times."""


class Kept:
    """Services that are started anew after an input that has broken them."""

    def __init__(self, folder: Any) -> None:
        self._folder = folder
        self._stack = contextlib.ExitStack()
        self.services: Services | None = None

    async def whole(self) -> Services:
        if self.services is None:
            self.services = await asyncio.to_thread(self._stack.enter_context, started(self._folder))
            await self.services.warm()
        return self.services

    def end(self) -> None:
        self.services = None
        self._stack.close()


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kept]:
    kept = Kept(tmp_path_factory.mktemp("hostile"))
    yield kept
    kept.end()


async def send(services: Services, what: Input, sent: list[Message | bytes]) -> list[Any]:
    if what.to.startswith("POST "):
        [body] = sent
        assert isinstance(body, bytes)
        return await services.http("POST", what.to.partition(" ")[2], body, what.headers)
    if what.to != "cells":
        return await services.call(what.to, *sent)
    created, status = await services.call("CreateSession", pb.CreateSessionRequest(limits=pb.Limits(wall_time_s=3)))
    assert status == "OK", created
    name, answers = created.session.session_id, []
    for cell in sent:
        assert isinstance(cell, pb.ExecuteCodeRequest)
        cell.session_id = name
        answers += await services.call("ExecuteCode", cell)
    await services.call("DeleteSession", pb.DeleteSessionRequest(session_id=name))
    return answers


async def harm(services: Services, made: dict[str, list[Message | bytes]]) -> None:
    """Sends what was made of those inputs, and looks at what came back and at the services."""
    began = time.monotonic()
    for name, sent in made.items():
        for each in await send(services, INPUTS[name], sent):
            assert not (isinstance(each, Message) and infra(each)), (name, each)
            assert each not in OURS, (name, each)
            assert not (isinstance(each, int) and each >= 500), (name, each)
    await services.check(began, _MOST_S)


async def holds(kept: Kept, *names: str) -> None:
    """Everything, when those inputs have been sent."""
    services = await kept.whole()
    try:
        # What calls have left may stay until others come, for instance the bytes of the last; it must not become more.
        most, made = GROWTH, {name: INPUTS[name].make() for name in names}
        for _ in range(_ROUNDS):
            await harm(services, made)
            if not (grown := services.grown(most)):
                return
            services.settle()
            most = _AGAIN
        raise AssertionError(f"after {names}: {grown}")
    except BaseException:
        kept.end()
        raise


_SMALL = [name for name, each in INPUTS.items() if not each.large]


@pytest.mark.parametrize("name", [name for name, each in INPUTS.items() if each.large])
async def test_whatever_is_sent_everything_holds(kept: Kept, name: str) -> None:
    await holds(kept, name)


@pytest.mark.parametrize("names", [_SMALL[at : at + _TOGETHER] for at in range(0, len(_SMALL), _TOGETHER)], ids=min)
async def test_whatever_small_is_sent_everything_holds(kept: Kept, names: list[str]) -> None:
    try:
        await holds(kept, *names)
    except Exception:
        for name in names:
            await holds(kept, name)
        raise


def test_the_table_is_as_long_as_it_has_to_be() -> None:
    assert len(INPUTS) >= 120
