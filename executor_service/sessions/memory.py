"""Memory of each box in which interpreters of sessions live, as whoever admits runs counts it.

Invariants: what a box holds while no cell runs there is said by its init, not from inside; it counts until the box has
ended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from executor_service.model import Limits
from executor_service.runs.admission import Admission, Memory
from executor_service.sessions.interpreters import InterpreterTree
from fairbox.clock import Clock


class SessionMemory:
    """`size_of`: bytes of memory that whoever has such limits may use."""

    def __init__(self, admission: Admission, size_of: Callable[[Limits], int], clock: Clock) -> None:
        self._admission = admission
        self._size_of = size_of
        self._clock = clock
        self._found: dict[InterpreterTree, Memory] = {}

    def of(self, tree: InterpreterTree) -> Memory | None:
        """Memory of a box; None: it is ending."""
        return self._found.get(tree)

    @contextmanager
    def counted(self, tree: InterpreterTree, limits: Limits) -> Iterator[None]:
        """Counts what a box holds, for a block."""
        memory = self._found[tree] = Memory(self._size_of(limits))

        def keep(size: int) -> None:
            self._admission.keep(memory, size, self._clock.now())

        tree.questions.on_kept = keep
        try:
            yield
        finally:
            del self._found[tree]
            keep(0)
