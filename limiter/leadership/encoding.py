"""The roster as plain JSON data, wherever it is kept."""

from __future__ import annotations

from collections.abc import Sequence

from limiter.leadership.term import Member

__all__ = ["decode_roster", "encode_roster"]


def encode_roster(roster: Sequence[Member] | None) -> list[list[str]] | None:
    """`[[session_id, name], ...]`; None stays None."""
    return None if roster is None else [[member.session_id, member.name] for member in roster]


def decode_roster(value: object) -> tuple[Member, ...] | None:
    """What `encode_roster` wrote; ValueError says what is wrong."""
    if value is None:
        return None
    if not isinstance(value, list):
        raise ValueError(f"roster is {value!r}"[:80] + ", must be a list or null")
    members = []
    for index, entry in enumerate(value):
        if not (isinstance(entry, list) and len(entry) == 2 and all(isinstance(part, str) for part in entry)):
            raise ValueError(f"roster[{index}] is {entry!r}"[:80] + ", must be a session and a name")
        members.append(Member(*entry))
    return tuple(members)
