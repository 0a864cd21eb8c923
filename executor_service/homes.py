"""Where a client's sessions and workspaces are, when there are several servers. Pure and bounded.

A session lives in the server that made it; a workspace is where it was prepared. What is not known here (another
process made it) is asked for anywhere, and whoever does not have it says so.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Sequence

__all__ = ["Homes", "preferred"]

MOST = 100_000
"""Names that are kept; the least recently used go first. Sessions are removed when they end."""


class Homes:
    """Addresses of servers by session and workspace."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._known: OrderedDict[str, frozenset[str]] = OrderedDict()

    def of(self, name: str) -> frozenset[str] | None:
        """None: not known."""
        if name not in self._known:
            return None
        self._known.move_to_end(name)
        return self._known[name]

    def add(self, name: str, address: str) -> None:
        """That server has it. A workspace that was prepared again has moved: its former home may have removed it."""
        self._known[name] = frozenset({address})
        self._known.move_to_end(name)
        if len(self._known) > self._most:
            self._known.popitem(last=False)

    def remove(self, name: str) -> None:
        """It has ended. Idempotent."""
        self._known.pop(name, None)

    def __len__(self) -> int:
        return len(self._known)


def preferred(addresses: Sequence[str], key: str) -> frozenset[str] | None:
    """The server that most clients choose for `key`, whichever others there are (rendezvous hashing). None: there is no
    choice."""
    if len(addresses) < 2:
        return None
    return frozenset({max(addresses, key=lambda each: hashlib.sha256(f"{each} {key}".encode()).digest())})
