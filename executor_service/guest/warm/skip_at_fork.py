"""Spares workers what `threading` does in a forked child.

It forgets the threads of the parent; inits and zygotes have none, and it is a twentieth of what a worker costs. From
`as_usual()` on, in a worker that is about to be a program, it is done as ever. `spare()` comes before anything imports
`threading`; where something has imported that first, nothing is spared.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_sparing = [True]
_register = os.register_at_fork


def _register_sparing(*, after_in_child: Callable[[], object]) -> None:
    _register(after_in_child=lambda: None if _sparing else after_in_child())


def spare() -> None:
    """Imports `threading`."""
    os.register_at_fork = _register_sparing  # type: ignore[assignment]
    import threading  # noqa: F401

    os.register_at_fork = _register


def as_usual() -> None:
    """Spares no fork from now on: what is forked is a child of a program."""
    _sparing.clear()
