"""Session streams over calls: a client sends frames in numbered calls and waits for the answers in held polls.

Invariants: frames are handled in the order of their numbers, or the stream ends; a stream that nobody polls for
`silence` seconds ends, as over a broken connection; the number of streams is bounded. It knows no Ray.
"""

from __future__ import annotations

import asyncio

from google.protobuf.message import DecodeError

from fairbox.errors import FieldErrors
from limiter.server.hub import Hub
from limiter.server.peer import PeerStream
from limiter.v1 import limiter_pb2 as pb

__all__ = ["Streams"]


class _Stream:
    """One stream: its end here, the number of its last frame, and the timer that ends it."""

    __slots__ = ("number", "peer", "polled", "timer")

    def __init__(self, peer: PeerStream) -> None:
        self.peer = peer
        self.number = 0
        self.polled = False
        self.timer: asyncio.TimerHandle | None = None


class Streams:
    """All streams of one hub. Make it inside the running loop; closing the hub ends them."""

    def __init__(self, hub: Hub, *, poll: float, silence: float, max_streams: int) -> None:
        self._hub = hub
        self._poll = poll
        self._silence = silence
        self._max_streams = max_streams
        self._streams: dict[str, _Stream] = {}
        self._loop = asyncio.get_running_loop()

    def __len__(self) -> int:
        return len(self._streams)

    def open(self, stream_id: str) -> str:
        """Makes a stream; returns why not, or "". `stream_id` is made up by the client and never used again."""
        if self._hub.closed:
            return "the limiter is shutting down"
        if stream_id in self._streams:
            return f"stream {stream_id} is open already"
        if len(self._streams) >= self._max_streams:
            return f"{len(self._streams)} streams are open, which is all that may"
        self._streams[stream_id] = stream = _Stream(PeerStream(self._hub))
        self._watch(stream_id, stream)
        return ""

    def send(self, stream_id: str, number: int, data: bytes) -> str:
        """Handles frame `number`, counted from 1; returns why the stream has ended, or ""."""
        stream = self._streams.get(stream_id)
        if stream is None:
            return "the limiter has ended the stream"
        if number != stream.number + 1:
            self.close(stream_id)
            return f"frame {number} came after frame {stream.number}"
        stream.number = number
        try:
            stream.peer.receive(pb.SessionRequest.FromString(data))
        except (FieldErrors, DecodeError) as error:
            self.close(stream_id)
            return str(error)
        return ""

    async def receive(self, stream_id: str) -> bytes | None:
        """The next frame; b"" when there was none for the time of a poll; None when the stream has ended."""
        stream = self._streams.get(stream_id)
        if stream is None or stream.polled:
            self.close(stream_id)
            return None
        stream.polled = True
        if stream.timer is not None:
            stream.timer.cancel()
        try:
            async with asyncio.timeout(self._poll):
                frame = await stream.peer.next_frame()
        except TimeoutError:
            return b""
        finally:
            stream.polled = False
            self._watch(stream_id, stream)
        if frame is None:
            self.close(stream_id)
            return None
        return frame.SerializeToString()

    def finish(self, stream_id: str) -> None:
        """The client sends nothing more."""
        stream = self._streams.get(stream_id)
        if stream is not None:
            stream.peer.finish()

    def close(self, stream_id: str) -> None:
        """Ends a stream. Idempotent."""
        stream = self._streams.pop(stream_id, None)
        if stream is not None:
            if stream.timer is not None:
                stream.timer.cancel()
            stream.peer.end()

    def _watch(self, stream_id: str, stream: _Stream) -> None:
        if self._streams.get(stream_id) is stream:
            stream.timer = self._loop.call_later(self._silence, self.close, stream_id)
