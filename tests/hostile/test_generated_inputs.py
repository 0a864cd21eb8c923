"""Inputs that are generated, for every RPC and every route of both gateways: a few hundred, and `make soak` sends many.

FAIRBOX_FUZZ_INPUTS sets the number of those (200,000), FAIRBOX_FUZZ_SEED where they begin. A failure names the inputs
that came before it; each can be made again from its number.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import time
from collections import Counter
from pathlib import Path
from typing import Any

import aiohttp
import grpc.aio
import pytest
from google.protobuf.message import Message

from executor_service.v1 import executor_pb2 as pb
from fairbox.net.channels import open_channel
from rollout.capture.requests import _Body
from tests.hostile.generated import Generator
from tests.hostile.services import OURS, RPCS, Services, called, infra, started

_SEED = os.environ.get("FAIRBOX_FUZZ_SEED", "1")
_BATCH = 500
"""Inputs after which everything has to hold."""
_AT_ONCE = 8
_WITHIN_S = 1.0
"""A call may wait for what does not come: that is its own affair, and it is left then."""
_KNOWN = ("The session was deleted.",)
"""Texts of answers that may blame the infrastructure: another input has deleted the session."""
_TRAJECTORIES = ("/t/1", "/t/2")
"""Trajectories of the capture gateway."""
_QUIET = (0.1, 0.25)
"""Longest answers of health services on a quiet machine, seconds: 99 of 100, and all."""


class Fuzzer:
    def __init__(self, services: Services, schema: dict[str, Any]) -> None:
        self._services = services
        self._schema = schema
        self._known: list[str] = []
        self.statuses = Counter[str]()
        self._channels: dict[str, grpc.aio.Channel] = {}

    async def run(self, numbers: range, most_s: float) -> list[float]:
        """Sends those inputs and looks whether everything holds; the waits for answers of health services."""
        began, todo = time.monotonic(), iter(numbers)
        async with contextlib.AsyncExitStack() as stack, aiohttp.ClientSession() as session:
            for name in RPCS:
                address = self._services.address(name)
                if address not in self._channels:
                    self._channels[address] = await stack.enter_async_context(open_channel(address))

            async def worker() -> None:
                for number in todo:
                    await self._send(number, session)

            async with asyncio.TaskGroup() as group:
                for _ in range(_AT_ONCE):
                    group.create_task(worker())
            self._channels.clear()
        for name in self._known:
            await self._services.call("DeleteSession", pb.DeleteSessionRequest(session_id=name))
        self._known.clear()
        for path in _TRAJECTORIES:
            await self._services.http("DELETE", path, b"", {})
        return await self._services.check(began, most_s)

    async def _send(self, number: int, session: aiohttp.ClientSession) -> None:
        to, sent, headers = Generator(f"{_SEED}/{number}", self._schema, self._known).input()
        if " " in to:
            await self._post(number, session, to, sent[0], headers)
            return
        answers = await called(self._channels[self._services.address(to)], to, *sent, within_s=_WITHIN_S)
        self.statuses[f"{to} {answers[-1]}"] += 1
        known = any(text in str(answers) for text in _KNOWN)
        for each in answers:
            assert known or not (isinstance(each, Message) and infra(each)), (number, to, sent, each)
            if isinstance(each, pb.CreateSessionResponse):
                self._known.append(each.session.session_id)
            elif isinstance(each, pb.BranchSessionResponse):
                self._known += [one.session_id for one in each.sessions]
        assert known or answers[-1] == "DEADLINE_EXCEEDED" or answers[-1] not in OURS, (number, to, sent, answers)

    async def _post(
        self, number: int, session: aiohttp.ClientSession, to: str, body: Any, headers: dict[str, str]
    ) -> None:
        method, path = to.split()
        url, timeout = self._services.url(path), aiohttp.ClientTimeout(total=_WITHIN_S)
        try:
            async with session.request(method, url, data=body, headers=headers, timeout=timeout) as answer:
                self.statuses[f"{to} {answer.status}"] += 1
                assert answer.status < 500, (number, to, body, await answer.text(errors="replace"))
                await answer.read()
        except (TimeoutError, aiohttp.ClientError):  # what is no HTTP is cut off while it is sent
            self.statuses[f"{to} left"] += 1


def _with_capture(schema: dict[str, Any]) -> dict[str, Any]:
    """The gateway's openapi.json, and the same of the capture gateway, which tells nothing of the kind."""
    chat = _Body.model_json_schema(ref_template="#/components/schemas/{model}")
    schema["components"]["schemas"] |= chat.pop("$defs")
    chat["properties"]["model"] = {"const": "scripted"}
    reward = {"properties": {"reward": {"type": "number"}}, "required": ["reward"]}
    for path in _TRAJECTORIES:
        bodies = {f"{path}/v1/chat/completions": chat, f"{path}/reward": reward}
        for to, body in bodies.items():
            content = {"application/json": {"schema": body}}
            schema["paths"][to] = {"post": {"requestBody": {"content": content}}}
        schema["paths"][path] = {}
    for path in ("/statistics", "/v1/models/x", "/v1/chat/completions"):
        schema["paths"][path] = {}
    return schema


async def fuzz(services: Services, numbers: range, most_s: float) -> list[float]:
    await services.warm()
    [_, text] = await services.http("GET", "/openapi.json", b"", {})
    fuzzer, waits = Fuzzer(services, _with_capture(json.loads(text))), list[float]()
    for at in range(numbers.start, numbers.stop, _BATCH):
        waits += await fuzzer.run(range(at, min(at + _BATCH, numbers.stop)), most_s)
    assert {name.split()[0] for name in fuzzer.statuses} >= RPCS.keys(), fuzzer.statuses
    assert sum(count for name, count in fuzzer.statuses.items() if name.endswith((" OK", " 200"))) > len(numbers) / 20
    return waits


async def test_a_few_generated_inputs_harm_nobody(tmp_path: Path) -> None:
    with started(tmp_path) as services:
        await fuzz(services, range(400), 2.0)


@pytest.mark.soak
@pytest.mark.timeout(6 * 3600)
async def test_many_generated_inputs_harm_nobody(tmp_path: Path) -> None:
    with started(tmp_path) as services:
        waits = sorted(await fuzz(services, range(int(os.environ.get("FAIRBOX_FUZZ_INPUTS", "200000"))), 60.0))
    assert waits[len(waits) * 99 // 100] <= _QUIET[0]
    assert waits[-1] <= _QUIET[1]
