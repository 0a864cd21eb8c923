"""Chooses one of several servers by a key, so that all clients choose the same (rendezvous hashing).

Invariants: the order of the servers does not matter; where one comes or goes, no key moves between the others.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection


def preferred(servers: Collection[str], key: str) -> str:
    """The server for `key`: the one with the greatest SHA-256 of its name and the key. ValueError: there is none."""
    return max(servers, key=lambda each: hashlib.sha256(f"{each} {key}".encode()).digest())
