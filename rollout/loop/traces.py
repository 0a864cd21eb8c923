"""The spans of one trajectory, and what the log says it is: nothing while tracing is off."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from opentelemetry.trace import INVALID_SPAN, Span, StatusCode

from executor_service import Cause
from fairbox.telemetry import logs, tracing
from rollout.loop.limits import StopReason
from rollout.loop.state import RequestState


class TrajectoryTrace:
    """From `begin()` to `end()`: `with trace.part("rollout.turn", turn=0)` for what it does. Before and after that, and
    so for a fork that was never entered, parts are not traced."""

    __slots__ = ("_span", "_trajectory_id")

    def __init__(self, trajectory_id: str) -> None:
        self._trajectory_id = trajectory_id
        self._span: Span = INVALID_SPAN

    def begin(self, *, uid: str, index: int, attempt: int, parent_id: str | None) -> None:
        """The trajectory is entered."""
        if tracing.enabled():
            facts: dict[str, tracing.Value] = {"uid": uid, "index": index, "attempt": attempt}
            self._span = tracing.trajectory_span(self._trajectory_id, **facts, parent_id=parent_id or "")

    @contextmanager
    def part(self, name: str, **attributes: tracing.Value) -> Iterator[None]:
        """Something that the trajectory does, with its id in the log."""
        with logs.bound(trajectory=self._trajectory_id), tracing.span(name, self._span, **attributes):
            yield

    def end(self, state: RequestState, turns: int, reason: StopReason | None) -> None:
        """The trajectory is left; `reason` None: in the middle."""
        span, self._span = self._span, INVALID_SPAN
        stop_reason = "" if reason is None else reason.value
        span.set_attributes(tracing.named({"state": state.value, "turns": turns, "stop_reason": stop_reason}))
        if state is RequestState.FAILED:
            span.set_attribute("fairbox.cause", Cause.INFRA.value)
            span.set_status(StatusCode.ERROR, "INFRA")
        span.end()
