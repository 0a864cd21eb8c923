"""Events of a run, as the processes themselves wrote them down: facts for the checker, and the code that reads them.

Times are nanoseconds of CLOCK_MONOTONIC, which all processes on one machine share. Runs of executors are known from
executors alone, never from the limiter.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.limiter.chaos.journal import Steps

_RETURN_NS = 3_000_000_000
"""For so long a new limiter grants nothing, so that holders can report: what they hold is counted until then."""


@dataclass(frozen=True, slots=True)
class Run:
    """A program that an executor ran under a lease, or a client's own work under a hold."""

    executor: str
    bucket: str
    tokens: int
    lease: tuple[int, int]
    """Epoch and number."""
    start: int
    stop: int
    """The last instant at which it ran."""


@dataclass(frozen=True, slots=True)
class Grant:
    """A grant that reached its client."""

    client: str
    request: str
    bucket: str
    lease: tuple[int, int]
    """Epoch and number; a limiter numbers its grants in their order."""
    asked: int
    """Time at which the request was made."""
    queued: int | None = None
    """Time at which the client learned, on the stream of the grant, that its request was in the limiter's queue. So the
    limiter saw its session connected from then on. None: the stream never said so."""
    ticket: tuple[int, int] | None = None
    """The ticket that it was told on that stream, or had brought there before anything was granted."""


@dataclass(frozen=True, slots=True)
class Request:
    """A request and all of its ends."""

    client: str
    request: str
    ends: tuple[str, ...]
    """Each of granted, rejected, timed out, cancelled, unavailable."""
    survived: bool = True
    """True if its process lived until it had written everything down."""


@dataclass(frozen=True, slots=True)
class History:
    """One run of the cluster."""

    limits: dict[str, int]
    runs: tuple[Run, ...]
    requests: tuple[Request, ...]
    grants: tuple[Grant, ...]


def read_history(folder: Path, limits: dict[str, int]) -> History:
    """Reads the journals of all executors and clients in `folder`."""
    runs: list[Run] = []
    requests: list[Request] = []
    grants: list[Grant] = []
    kills = [event["at"] for path in folder.glob("limiter.jsonl") for event in _events(path)]
    for path in sorted(folder.glob("executor-*.jsonl")):
        runs += _runs(path, kills)
    for path in sorted(folder.glob("client-*.jsonl")):
        runs += _runs(path, kills)
        _read_client(path, requests, grants)
    return History(limits, tuple(runs), tuple(requests), tuple(grants))


def _events(path: Path) -> Iterator[dict[str, Any]]:
    for line in path.read_text(encoding="ascii").splitlines():
        yield json.loads(line)


def _runs(path: Path, kills: list[int]) -> Iterator[Run]:
    """Runs, each until its last step. `kills`: times at which the limiter was ended."""
    events = list(_events(path))
    steps: list[int] = []
    for event in events:
        if event["kind"] == "start":
            steps = steps or Steps.read(path.with_suffix(".steps"))
            stop = max(steps[event["run"]], event["at"])
            lease = (event["epoch"], event["seq"])
            for kill in sorted(kills):
                if "held" in event and event["at"] < kill < stop and not _reported(event, kill, events):
                    stop = min(stop, kill + _RETURN_NS)
            yield Run(path.stem, event["bucket"], event["tokens"], lease, event["at"], stop)


def _reported(held: dict[str, Any], kill: int, events: list[dict[str, Any]]) -> bool:
    """Says whether the limiter that came after `kill` heard in time of the held lease, and so counts it. A unary lease
    is never reported."""
    welcome = next((each for each in events if each["kind"] == "welcome" and each["at"] > kill), None)
    if held["held"] == "unary" or welcome is None or not welcome["recovering"]:
        return False
    lost = [each for each in events if each["kind"] == "unknown" and each["at"] > kill]
    return all((each["epoch"], each["seq"]) != (held["epoch"], held["seq"]) for each in lost)


def _read_client(path: Path, requests: list[Request], grants: list[Grant]) -> None:
    made: dict[str, dict[str, Any]] = {}
    ends: dict[str, list[str]] = {}
    queued: dict[str, tuple[int, int]] = {}
    """By request: stream, and when it was known to be queued."""
    tickets: dict[str, tuple[int, int, tuple[int, int]]] = {}
    """By request: stream, epoch, ticket."""
    resumed: set[str] = set()
    """They came to their stream with a ticket, and may rightly have been passed while they had none."""
    welcome: dict[str, Any] = {}
    survived = False
    for event in _events(path):
        kind, request = event["kind"], event.get("request", "")
        if kind == "request":
            made[request] = event
        elif kind == "end":
            ends.setdefault(request, []).append(event["outcome"])
        elif kind == "queued":
            queued.setdefault(request, (event["stream"], event["at"]))
            if request not in resumed:
                tickets[request] = (event["stream"], welcome["epoch"], (event["epoch"], event["seq"]))
        elif kind == "welcome":
            welcome = event
        elif kind == "placed":
            queued[request] = (event["stream"], event["at"])
            _, epoch, ticket = tickets.pop(request, (-1, welcome["epoch"], (0, 0)))
            if welcome["recovering"] and epoch < welcome["epoch"] and request not in resumed:
                tickets[request] = (event["stream"], welcome["epoch"], ticket)
            else:
                resumed.add(request)
        elif kind == "granted":
            stream, since = queued.pop(request, (-1, 0))
            named, _, ticket = tickets.pop(request, (-1, 0, (0, 0)))
            grants.append(
                Grant(
                    path.stem,
                    request,
                    made[request]["bucket"],
                    (event["epoch"], event["seq"]),
                    made[request]["at"],
                    since if stream == event["stream"] else None,
                    ticket if named == event["stream"] else None,
                )
            )
        elif kind == "bye":
            survived = True
    requests += [Request(path.stem, name, tuple(ends.get(name, ())), survived) for name in made]
