"""The spans of one trajectory, and what the log says it is: nothing while tracing is off."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from executor_service import Cause
from fairbox import logs, tracing
from rollout.loop.limits import StopReason
from rollout.loop.state import RequestState

__all__ = ["TrajectoryTrace"]


class TrajectoryTrace:
    """From `begin()` to `end()`: `with trace.part("rollout.turn", turn=0)` for what it does. Before and after that, and
    so for a fork that was never entered, parts are not traced."""

    __slots__ = ("_span", "_trajectory_id")

    def __init__(self, trajectory_id: str) -> None:
        self._trajectory_id = trajectory_id
        self._span: tracing.Span | None = None

    def begin(self, *, uid: str, index: int, attempt: int, parent_id: str | None) -> None:
        """The trajectory is entered."""
        if tracing.enabled():
            facts: dict[str, tracing.Value] = {"uid": uid, "index": index, "attempt": attempt}
            facts["parent_id"] = parent_id or ""
            self._span = tracing.trajectory_span("rollout.trajectory", self._trajectory_id, **facts)

    @contextmanager
    def part(self, name: str, **attributes: tracing.Value) -> Iterator[None]:
        """Something that the trajectory does, with its id in the log."""
        parent = None if self._span is None else self._span.parent
        with logs.bound(trajectory=self._trajectory_id), tracing.under(parent, name, **attributes):
            yield

    def end(self, state: RequestState, turns: int, reason: StopReason | None) -> None:
        """The trajectory is left; `reason` None: in the middle."""
        span, self._span = self._span, None
        if span is None:
            return
        span.set(state=state.value, turns=turns, stop_reason="" if reason is None else reason.value)
        if state is RequestState.FAILED:
            span.set(cause=Cause.INFRA.value)
            span.fail("INFRA")
        span.end()
