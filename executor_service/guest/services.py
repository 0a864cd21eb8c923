"""Services that a worker offers over its channel: a name, and the function that serves until the channel ends.

The zygote loads them, because a worker's file system has nothing of ours.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from executor_service.guest.protocol.wire import GuestChannel

_NAMES = ("beside", "candidate", "cells", "checker", "shell")
"""Modules of `serve`, each with a function `serve(channel)`."""
_LEAN = ("beside", "shell")
"""Modules that a lean zygote has too: they need nothing else."""
_loaded: dict[str, Callable[[GuestChannel], None]] = {}


def load(*, lean: bool) -> None:
    """Imports every one of them, or the few that a lean zygote has."""
    for name in _LEAN if lean else _NAMES:
        found = __import__(f"{__package__}.serve.{name}", fromlist=["serve"])
        _loaded[name] = found.serve


def serve(name: str, channel: GuestChannel) -> None:
    """Serves until the channel ends. KeyError for an unknown name."""
    _loaded[name](channel)
