"""What an engine needs to be one of several."""

from __future__ import annotations

from typing import Protocol

from rollout.engines.weights import WeightedEngine

__all__ = ["Replica"]


class Replica(WeightedEngine, Protocol):
    """An engine whose health can be asked for. A failed `__aenter__` may be tried again."""

    async def check_health(self, *, timeout_s: float = 5.0) -> str:
        """The weight version it samples with. Raises EngineUnavailable when it does not answer."""
        ...
