"""Where the services find the hub: there is one only while this process leads."""

from __future__ import annotations

from typing import Any

import grpc
import grpc.aio

from limiter.leadership import Leadership
from limiter.server.hub import Hub

__all__ = ["Seat"]


class Seat:
    """`hub` is set when the process begins to lead, and stays, closed, when it has ended."""

    def __init__(self, leadership: Leadership) -> None:
        self.leadership = leadership
        self.hub: Hub | None = None

    @property
    def leads(self) -> bool:
        """Whether anything can be decided here."""
        return self.hub is not None and not self.hub.closed

    async def take(self, context: grpc.aio.ServicerContext[Any, Any]) -> Hub:
        """The hub; ends the call with UNAVAILABLE where there is none, or it was closed."""
        hub = self.hub
        if hub is None:
            text = f"this limiter does not lead; {self.leadership.leader or 'nobody it knows of'} does"
            await context.abort(grpc.StatusCode.UNAVAILABLE, text)
            raise AssertionError("abort() does not return")
        if hub.closed:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the limiter is shutting down")
        return hub
