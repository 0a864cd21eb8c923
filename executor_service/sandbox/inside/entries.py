"""Services that a worker offers over its channel: a name, and the function that serves until the channel ends.

The template loads them, because a worker's file system has nothing of ours.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from executor_service.sandbox.inside.wire import Channel

_MODULES: dict[str, str] = {"candidate": "candidate", "cells": "cells", "checker": "checker"}
"""Name -> module in this package, which has `serve(channel)`."""
_loaded: dict[str, Callable[[Channel], None]] = {}


def load() -> None:
    """Imports every one of them."""
    for name, module in _MODULES.items():
        found = __import__(f"{__package__}.{module}", fromlist=["serve"])
        _loaded[name] = found.serve


def serve(name: str, channel: Channel) -> None:
    """Serves until the channel ends. KeyError for an unknown name."""
    _loaded[name](channel)
