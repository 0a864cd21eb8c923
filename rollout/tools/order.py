"""In which order the calls of one turn start. Pure.

Calls start in the order in which the model wrote them, as long as fewer than `most` run. A call in a lane waits for the
call before it in the same lane to end, without taking up room meanwhile; calls behind it may start before it. A tool
whose calls must not run at once is a lane, so that different tools still run in parallel.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

__all__ = ["CallOrder"]


class CallOrder:
    """`lanes` has one entry for each call: the lane that it is in, or None for a call that may run beside any other."""

    def __init__(self, lanes: Sequence[Hashable | None], *, most: int) -> None:
        assert most >= 1
        self._lanes = tuple(lanes)
        self._most = most
        self._waiting = list(range(len(self._lanes)))
        self._running: set[int] = set()
        self._ended: set[int] = set()

    @property
    def running(self) -> int:
        """Calls that have started and not ended."""
        return len(self._running)

    @property
    def done(self) -> bool:
        return len(self._ended) == len(self._lanes)

    def start(self) -> list[int]:
        """The calls that start now, in their order; from here on they count as running."""
        busy = {self._lanes[index] for index in self._running} - {None}
        chosen: list[int] = []
        for index in self._waiting:
            if len(self._running) + len(chosen) == self._most:
                break
            lane = self._lanes[index]
            if lane in busy:
                continue
            chosen.append(index)
            if lane is not None:
                busy.add(lane)
        self._waiting = [index for index in self._waiting if index not in chosen]
        self._running.update(chosen)
        return chosen

    def ended(self, index: int) -> None:
        """A call that ran has ended."""
        self._running.remove(index)
        self._ended.add(index)
