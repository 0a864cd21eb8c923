"""Events of a server's stream: cut out of its bytes, read within bounds, and shown in errors. Pure.

Invariants: what is long is copied once and read in steps; no text has more of what a server sent than 300 characters.
"""

from __future__ import annotations

import json
import reprlib
from itertools import islice
from typing import Any

from fairbox.apart import AT_ONCE
from fairbox.bounded_json import loads
from rollout.engines.base import EngineUnavailable

MOST_DEPTH = 64
"""Most levels of an answer."""
_BYTES_PER_VALUE = 4
"""Fewest bytes of a value in a long event: ids and logprobs take more on average."""
_DATA = b"data:"


class EventSplitter:
    """Cuts a stream of server-sent events into their payloads. Raises EngineUnavailable above `max_bytes` of one."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._rest = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """The payloads that `data` completes."""
        rest, payloads, start = self._rest, [], 0
        seen = max(0, len(rest) - 1)  # no event ends before this
        rest += data
        with memoryview(rest) as view:  # what is long is copied once
            while (end := rest.find(b"\n\n", max(seen, start))) >= 0:
                self._check(end - start)
                if rest.startswith(_DATA, start, end):
                    payloads.append(bytes(view[start + len(_DATA) : end]))
                start = end + 2
        self._check(len(rest) - start)
        del rest[:start]
        return payloads

    def _check(self, size: int) -> None:
        if size > self._max_bytes:
            raise EngineUnavailable(f"a server answered with more than {self._max_bytes} bytes")


def event_of(payload: bytes) -> Any:
    """The event of a payload; None: the stream is complete. Raises EngineUnavailable."""
    if len(payload) < AT_ONCE and payload.strip() == b"[DONE]":
        return None
    try:
        if len(payload) <= AT_ONCE:
            return json.loads(payload)
        return loads(payload, depth=MOST_DEPTH, left=[len(payload) // _BYTES_PER_VALUE])
    except (ValueError, RecursionError) as error:
        problem = f"{error!r:.300}"
    # Outside of the handler: as its context, the error would keep all that was read until the event loop frees it.
    raise EngineUnavailable(f"an event can't be read ({problem}): {payload[:200]!r}")


def error_text(event: Any) -> str:
    """Message of an error's body, at most 300 characters of it."""
    error = event.get("error", event) if isinstance(event, dict) else event
    text = error.get("message", error) if isinstance(error, dict) else error
    return text[:300] if isinstance(text, str) else brief(text)


class _Brief(reprlib.Repr):
    """Looks at the beginning alone."""

    def __init__(self) -> None:
        super().__init__()
        self.maxstring = 200

    def repr_dict(self, value: dict[Any, Any], level: int) -> str:
        return super().repr_dict(dict(islice(value.items(), self.maxdict + 1)), level)  # which would sort them all


def brief(value: Any) -> str:
    """At most 300 characters of what a server sent, however much it is."""
    return _Brief().repr(value)[:300]
