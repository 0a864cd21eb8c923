"""What a limiter that does not lead says in trailing metadata, where it knows: who does."""

from __future__ import annotations

__all__ = ["LEADER_ADDRESS_METADATA", "LEADER_METADATA"]

LEADER_METADATA = "limiter-leader"
"""Who leads, for people."""
LEADER_ADDRESS_METADATA = "limiter-leader-address"
"""Where clients reach who leads, HOST:PORT."""
