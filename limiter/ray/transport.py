"""Sessions over calls of a Ray actor.

Frames go out in numbered calls, one at a time, so that whatever comes meanwhile is collected into the next; frames come
in as answers to polls, of which one is always held. Ray repeats no call (`max_task_retries` is 0), so a call that fails
may or may not have been done: the stream is then lost, and the next hello says what holds.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from typing import Any

import ray
from ray.exceptions import RayError

from limiter.client.transport import ConnectionLost
from limiter.ray.settings import DEFAULT_NAME, NAMESPACE
from limiter.v1 import limiter_pb2 as pb

__all__ = ["RayTransport"]

_ANSWER_WITHIN_S = 5.0
"""The actor answers a call at once; one that has not by then is unreachable."""
_POLL_WITHIN_S = 10.0
"""The same for a poll, which the actor holds for a while."""


class RayTransport:
    """Streams to the limiter actor of that name. Needs a process that is connected to the Ray cluster."""

    def __init__(self, name: str = DEFAULT_NAME, *, namespace: str = NAMESPACE) -> None:
        self.target = f"ray://{namespace}/{name}"
        self._name = name
        self._namespace = namespace
        self._actor: Any = None

    async def connect(self) -> _Connection:
        """Opens a stream. An actor that was lost for good is looked up again by its name."""
        if not ray.is_initialized():
            raise ConnectionLost("this process is not connected to a Ray cluster: call ray.init() first")
        if self._actor is None:
            try:
                async with asyncio.timeout(_ANSWER_WITHIN_S):
                    self._actor = await asyncio.to_thread(ray.get_actor, self._name, self._namespace)
            except ValueError:
                raise ConnectionLost(f"there is no actor {self._name!r} in namespace {self._namespace!r}") from None
            except (RayError, TimeoutError) as error:
                raise ConnectionLost(f"the Ray cluster does not answer: {error!r}") from None
        connection = _Connection(self._actor)
        try:
            await connection.open()
        except ConnectionLost:
            self._actor = None
            raise
        return connection

    async def close(self) -> None:
        """Nothing is held."""


class _Connection:
    """One stream of the actor."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor
        self._stream_id = uuid.uuid4().hex
        self._number = 0
        self._open = False

    async def open(self) -> None:
        """Makes the stream."""
        problem = await _answer(self._actor.open.remote(self._stream_id), _ANSWER_WITHIN_S)
        if problem:
            raise ConnectionLost(problem)
        self._open = True

    async def send(self, frame: pb.SessionRequest) -> None:
        """Returns when the actor has handled the frame."""
        self._check_open()
        self._number += 1
        call = self._actor.send.remote(self._stream_id, self._number, frame.SerializeToString())
        problem = await _answer(call, _ANSWER_WITHIN_S)
        if problem:
            raise ConnectionLost(problem)

    async def receive(self) -> pb.SessionResponse:
        """Polls until there is a frame."""
        while True:
            self._check_open()
            data = await _answer(self._actor.receive.remote(self._stream_id), _POLL_WITHIN_S)
            if data is None:
                raise ConnectionLost("the stream has ended")
            if data:
                return pb.SessionResponse.FromString(data)

    async def finish(self) -> None:
        """Tells the actor that nothing more comes."""
        with contextlib.suppress(ConnectionLost):
            await _answer(self._actor.finish.remote(self._stream_id), _ANSWER_WITHIN_S)

    async def close(self) -> None:
        """Tells the actor, without waiting for its answer."""
        if self._open:
            self._open = False
            with contextlib.suppress(Exception):  # Ray may be shut down already; the stream then ends by its silence
                self._actor.close.remote(self._stream_id)

    def _check_open(self) -> None:
        if not self._open:
            raise ConnectionLost("the stream was closed")


async def _answer(reference: Any, within: float) -> Any:
    """The result of a call. ConnectionLost when the actor is gone, or does not answer within that many seconds."""
    try:
        async with asyncio.timeout(within):
            return await reference
    except TimeoutError:
        raise ConnectionLost(f"the actor did not answer within {within:.0f} s") from None
    except RayError as error:
        raise ConnectionLost(f"{type(error).__name__}: {str(error).partition(chr(10))[0]}") from None
