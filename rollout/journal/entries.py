"""Entries of a journal: what a trajectory has come to, from outside of it, in the order in which it came. Pure.

An entry is one of a trajectory's effects: a turn that was sampled, answers of tools. What follows from them (tokens,
masks, decisions) is computed again and is no entry. Numbers survive exactly: ids and logprobs as their bits, others
with as many digits as theirs need.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

from rollout.engines.base import FinishReason, GenerationResult, VersionSpan
from rollout.tools.base import ToolOutcome, ToolResponse


@dataclass(frozen=True, slots=True)
class Opened:
    """A trajectory began."""

    trajectory_id: str
    started_at: float
    """Unix seconds."""
    task: str
    """SHA-256 of the prompt's ids, the seed and the sampling, by which another task is noticed."""


@dataclass(frozen=True, slots=True)
class Sampled:
    """The engine sampled a turn. Times are seconds from the trajectory's start."""

    began_s: float
    ended_s: float
    turn: GenerationResult


@dataclass(frozen=True, slots=True)
class Calling:
    """The calls of a turn are about to be sent: from here on they may have run."""


@dataclass(frozen=True, slots=True)
class Answered:
    """The calls of a turn were answered, each in its place."""

    ended_s: float
    responses: tuple[ToolResponse, ...]


@dataclass(frozen=True, slots=True)
class Rewarded:
    """The tools gave their own rewards."""

    rewards: dict[str, float]


@dataclass(frozen=True, slots=True)
class Ended:
    """The trajectory ended. `error`: why it failed, if the service failed it."""

    total_s: float
    error: str | None = None
    follows: int = 0
    """Number of entries that it follows. Others were recorded before it, if the trajectory could not go on from them.
    """


@dataclass(frozen=True, slots=True)
class Scored:
    """The trajectory got its reward."""

    value: float
    parts: dict[str, float] = field(default_factory=dict)
    turns: dict[int, float] = field(default_factory=dict)


_IDS, _LOGPROBS = "I", "d"
"""Codes of `struct` for the numbers of a turn: they are packed, little-endian, behind the line of its other fields, in
a tenth of the time that their digits would take."""
Entry = Opened | Sampled | Calling | Answered | Rewarded | Ended | Scored
E = TypeVar("E", bound=Entry)


class BadEntry(ValueError):
    """Bytes that are no entry, or not those that were written."""


@dataclass(frozen=True, slots=True)
class Written:
    """An entry as it is stored."""

    kind: str
    body: bytes
    checksum: int


def written(entry: Entry) -> Written:
    """Raises ValueError and TypeError for what has no place in an entry."""
    # ASCII, as in dumps: texts of tools may hold lone surrogates.
    body = _ENCODER.encode(entry).encode("ascii")
    if isinstance(entry, Sampled):
        body += b"\n" + _packed(_IDS, entry.turn.ids) + _packed(_LOGPROBS, entry.turn.logprobs)
    return Written(type(entry).__name__, body, zlib.crc32(body))


def read(stored: Written) -> Entry:
    """Raises BadEntry."""
    try:
        if zlib.crc32(stored.body) != stored.checksum:
            raise BadEntry(f"an entry of kind {stored.kind!r} is not as it was written")
        line, _, numbers = stored.body.partition(b"\n")
        body = json.loads(line)
        return _sampled(body, numbers) if stored.kind == Sampled.__name__ else _READERS[stored.kind](body)
    except (KeyError, TypeError, ValueError, struct.error) as error:
        raise BadEntry(f"an entry of kind {stored.kind!r} can't be read: {error}") from None


def _fields(value: Any) -> dict[str, Any]:
    """Fields of what JSON doesn't know: a dataclass, or a mapping that is no dict. Of a turn's numbers their count."""
    if isinstance(value, Mapping):
        return dict(value)
    if (names := _NAMES.get(type(value))) is None:
        raise TypeError(f"{type(value).__name__} is no JSON")
    found = {name: getattr(value, name) for name in names}
    if isinstance(value, GenerationResult):
        found |= {"ids": len(value.ids), "logprobs": len(value.logprobs)}
    return found


_NAMES: dict[type, tuple[str, ...]] = {
    kind: tuple(each.name for each in fields(kind))
    for kind in (
        Opened,
        Sampled,
        Calling,
        Answered,
        Rewarded,
        Ended,
        Scored,
        GenerationResult,
        VersionSpan,
        ToolResponse,
    )
}
_ENCODER = json.JSONEncoder(default=_fields, separators=(",", ":"))


def _packed(kind: str, numbers: Sequence[float]) -> bytes:
    try:
        return struct.pack(f"<{len(numbers)}{kind}", *numbers)
    except struct.error as error:
        raise ValueError(f"numbers of a turn can't be written: {error}") from None


def _sampled(body: dict[str, Any], numbers: bytes) -> Sampled:
    turn = body.pop("turn")
    packed = struct.Struct(f"<{turn.pop('ids')}{_IDS}"), struct.Struct(f"<{turn.pop('logprobs')}{_LOGPROBS}")
    ids, logprobs = packed[0].unpack_from(numbers), packed[1].unpack(numbers[packed[0].size :])
    versions = tuple(VersionSpan(**span) for span in turn.pop("versions"))
    finish = FinishReason(turn.pop("finish"))
    return Sampled(**body, turn=GenerationResult(ids, logprobs, finish, versions, **turn))


def _answered(body: dict[str, Any]) -> Answered:
    responses = tuple(
        ToolResponse(**{**response, "outcome": ToolOutcome(response["outcome"])}) for response in body.pop("responses")
    )
    return Answered(**body, responses=responses)


def _scored(body: dict[str, Any]) -> Scored:
    return Scored(**{**body, "turns": {int(turn): part for turn, part in body["turns"].items()}})


_READERS: dict[str, Callable[[dict[str, Any]], Entry]] = {
    "Opened": lambda body: Opened(**body),
    "Calling": lambda body: Calling(**body),
    "Answered": _answered,
    "Rewarded": lambda body: Rewarded(**body),
    "Ended": lambda body: Ended(**body),
    "Scored": _scored,
}
