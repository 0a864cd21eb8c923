"""Entries of a journal: what a trajectory has come to, from outside of it, in the order in which it came. Pure.

An entry is one of a trajectory's effects: a turn that was sampled, answers of tools. What follows from them (tokens,
masks, decisions) is computed again and is no entry. Numbers survive exactly: ids and logprobs as their bits, others
with as many digits as theirs need.
"""

from __future__ import annotations

import json
import sys
import zlib
from array import array
from base64 import b64decode, b64encode
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


_PACKED = {"ids": "I", "logprobs": "d"}
"""Fields of a turn that are written as their bits."""
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
    # ASCII, as in dumps: texts of tools may hold lone surrogates.
    body = json.dumps(entry, default=_fields, separators=(",", ":")).encode("ascii")
    return Written(type(entry).__name__, body, zlib.crc32(body))


def read(stored: Written) -> Entry:
    """Raises BadEntry."""
    try:
        if zlib.crc32(stored.body) != stored.checksum:
            raise BadEntry(f"an entry of kind {stored.kind!r} is not as it was written")
        return _READERS[stored.kind](json.loads(stored.body))
    except (KeyError, TypeError, ValueError) as error:
        raise BadEntry(f"an entry of kind {stored.kind!r} can't be read: {error}") from None


def _fields(value: Any) -> dict[str, Any]:
    """Fields of what JSON doesn't know: a dataclass, or a mapping that is no dict."""
    if isinstance(value, Mapping):
        return dict(value)
    found = {each.name: getattr(value, each.name) for each in fields(value)}
    if isinstance(value, GenerationResult):
        found |= {name: _packed(kind, found[name]) for name, kind in _PACKED.items()}
    return found


def _packed(kind: str, numbers: Sequence[float]) -> str:
    """Numbers of one kind of `array`, little-endian, in base64: a twentieth of the time that their digits take."""
    packed = array(kind, numbers)
    if sys.byteorder == "big":
        packed.byteswap()
    return b64encode(packed).decode()


def _unpacked(kind: str, text: str) -> tuple[Any, ...]:
    packed = array(kind)
    packed.frombytes(b64decode(text, validate=True))
    if sys.byteorder == "big":
        packed.byteswap()
    return tuple(packed)


def _sampled(body: dict[str, Any]) -> Sampled:
    turn = body.pop("turn")
    for name, kind in _PACKED.items():
        turn[name] = _unpacked(kind, turn[name])
    versions = tuple(VersionSpan(**span) for span in turn.pop("versions"))
    finish = FinishReason(turn.pop("finish"))
    return Sampled(**body, turn=GenerationResult(**turn, finish=finish, versions=versions))


def _answered(body: dict[str, Any]) -> Answered:
    responses = tuple(
        ToolResponse(**{**response, "outcome": ToolOutcome(response["outcome"])}) for response in body.pop("responses")
    )
    return Answered(**body, responses=responses)


def _scored(body: dict[str, Any]) -> Scored:
    return Scored(**{**body, "turns": {int(turn): part for turn, part in body["turns"].items()}})


_READERS: dict[str, Callable[[dict[str, Any]], Entry]] = {
    "Opened": lambda body: Opened(**body),
    "Sampled": _sampled,
    "Calling": lambda body: Calling(**body),
    "Answered": _answered,
    "Rewarded": lambda body: Rewarded(**body),
    "Ended": lambda body: Ended(**body),
    "Scored": _scored,
}
