"""Judges a history. Pure: facts in, sentences out; no sentence means that everything held.

It knows nothing of how the limiter works, only what it promises: programs in flight never exceed the limit, a lease
serves one program, a request has one end, and whoever waits is served before those who came later.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from tests.limiter.chaos.history import Grant, History

_MS = 1e6


def problems(history: History) -> list[str]:
    """Violations, one sentence each."""
    return [*_over_limit(history), *_used_twice(history), *_ends(history), *_out_of_order(history)]


def _over_limit(history: History) -> Iterator[str]:
    """Sweeps over all starts and stops. Of two at the same instant the stop is first."""
    for bucket, limit in history.limits.items():
        edges: list[tuple[int, int, int]] = []
        runs = [run for run in history.runs if run.bucket == bucket]
        for number, run in enumerate(runs):
            edges.append((run.start, run.tokens, number))
            edges.append((max(run.stop, run.start + 1), -run.tokens, number))
        edges.sort()
        held, alive = 0, dict[int, None]()
        for at, tokens, number in edges:
            held += tokens
            if tokens < 0:
                del alive[number]
                continue
            alive[number] = None
            if held > limit:
                who = ", ".join(f"{runs[each].executor} {runs[each].lease} x{runs[each].tokens}" for each in alive)
                yield f"bucket {bucket}: {held} tokens in flight at {at}, the limit is {limit}: {who}"


def _used_twice(history: History) -> Iterator[str]:
    uses = Counter((run.bucket, run.lease) for run in history.runs)
    for (bucket, lease), count in uses.items():
        if count > 1:
            yield f"bucket {bucket}: lease {lease} served {count} programs"


def _ends(history: History) -> Iterator[str]:
    for request in history.requests:
        count = len(request.ends)
        if count > 1:
            yield f"{request.client} {request.request}: {count} ends: {', '.join(request.ends)}"
        elif request.survived and not count:
            yield f"{request.client} {request.request}: no end"


def _out_of_order(history: History) -> Iterator[str]:
    """A request that the limiter knew to wait must not be passed by one that was made later, or has a later ticket.

    Those that passed are looked at in the order of their grants: it is enough to keep the latest of them.
    """
    groups: dict[tuple[str, int], list[Grant]] = {}
    for grant in history.grants:
        groups.setdefault((grant.bucket, grant.lease[0]), []).append(grant)
    for (bucket, _), grants in groups.items():
        grants.sort(key=lambda grant: grant.lease)
        newest = latest = grants[0]
        ticketed: Grant | None = None
        for grant in grants:
            if grant.queued is not None and newest.asked > grant.queued:
                late = (newest.asked - grant.queued) / _MS
                yield (
                    f"bucket {bucket}: {_name(newest)} was asked for {late:.1f} ms after {_name(grant)} was queued, "
                    "and granted before it"
                )
            if grant.ticket is not None:
                if ticketed is not None and ticketed.ticket is not None and ticketed.ticket > grant.ticket:
                    yield (
                        f"bucket {bucket}: {_name(ticketed)} with ticket {ticketed.ticket} was granted before "
                        f"{_name(grant)} with ticket {grant.ticket}"
                    )
                else:
                    ticketed = grant
            if grant.asked > newest.asked:
                newest = grant
            if grant.lease == latest.lease and grant is not latest:
                yield f"bucket {bucket}: lease {grant.lease} was granted to {_name(latest)} and to {_name(grant)}"
            latest = grant


def _name(grant: Grant) -> str:
    return f"{grant.client} {grant.request} (lease {grant.lease[1]})"
