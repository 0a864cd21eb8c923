"""One screen of what limiter, executors, rollout services and a training run are doing, and what is wrong in words.

Pure: two moments in, seconds apart, a screen out; what is counted a second is the difference of their counters. A
service that was started again between them has no such figures until the next moment.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from rollout.watch.status import everybody, span

LONG_WAIT_S = 30.0
"""A request that has waited so long is told of: calls of tools take seconds."""
IDLE = 0.1
"""An engine that samples in less than this share of the time, while trajectories run, is told of."""
MASKED = 0.1
"""Share of the trajectories that have ended from which on masked ones are told of: one now and then is nothing."""
_BAR = 5
"""Characters of a bar."""
_FIGURES = ("reward", "masked", "policy_loss", "approx_kl", "entropy", "grad_norm", "time/rollouts_s", "time/update_s")
"""Figures of a training step that are shown, where it has them."""

Status = Mapping[str, Any]


@dataclass(frozen=True)
class Moment:
    """All answers at one time."""

    at_s: float
    """Seconds of a clock that only goes forward."""
    found: Status
    """Answers, as `ask` gives them."""
    step: Status = field(default_factory=dict)
    """Figures of a training run's last step; empty: there is none."""


@dataclass(frozen=True)
class _Change:
    """One service's answers now and before; `before` is empty where it did not answer, or was started again."""

    now: Status
    before: Status
    seconds: float

    def count(self, name: str) -> float | None:
        """Difference of a counter; None: it is not known."""
        return float(self.now[name]) - float(self.before[name]) if self.before else None

    def per_s(self, name: str) -> str:
        """The difference each second, as text."""
        return _rate(self.count(name), self.seconds)

    def outcomes(self) -> dict[str, float]:
        """Programs that have ended meanwhile, by outcome."""
        if not self.before:
            return {}
        old = self.before["outcomes"]
        new = {name: float(count) - float(old.get(name, 0)) for name, count in self.now["outcomes"].items()}
        return {name.removeprefix("OUTCOME_"): count for name, count in new.items() if count > 0}


def screen(now: Moment, before: Moment | None) -> RenderableType:
    """Tables of everybody who answers, and below them what is wrong."""
    tables = [*_limiter(now), *_executors(now, before), *_rollouts(now, before), *_training(now)]
    said = [Text(sentence, "red") for sentence in wrong(now, before)] or [Text("nothing is wrong", "green")]
    return Group(*tables, *said)


def wrong(now: Moment, before: Moment | None) -> list[str]:
    """A sentence for each thing that somebody should look at."""
    sentences = [answer["problem"] for _, answer in everybody(now.found) if answer["problem"]]
    if (limiter := now.found["limiter"]) is not None and limiter["status"] is not None:
        sentences += _wrong_limiter(limiter)
    for target, change in _changes("executors", now, before):
        sentences += (f"executor {target} {text}" for text in _wrong_executor(change))
    for target, change in _changes("rollouts", now, before):
        sentences += (f"rollout service {target} {text}" for text in _wrong_rollouts(change))
    return sentences


def _wrong_limiter(answer: Status) -> Iterator[str]:
    status = answer["status"]
    if status["recovering"]:
        missing = ", ".join(status["missing_executors"]) or "none that it knows"
        yield f"the limiter grants nothing for {span(status['recovering_for_s'])}; executors it waits for: {missing}"
    for bucket in status["buckets"]:
        name, queued = bucket["config"]["name"], bucket["queued"]
        if bucket["oldest_wait_s"] >= LONG_WAIT_S:
            yield f"bucket {name}: {_some(queued, 'request')} waiting, the first for {span(bucket['oldest_wait_s'])}"
        if queued and bucket["effective_limit"] < bucket["config"]["max_in_flight"]:
            most, limit = bucket["config"]["max_in_flight"], bucket["effective_limit"]
            yield f"bucket {name}: {limit} of {most} tokens can be given now, with {_some(queued, 'request')} waiting"


def _wrong_executor(change: _Change) -> Iterator[str]:
    status = change.now
    if status["draining"]:
        yield "is ending: it begins no more programs"
    limiter = status.get("limiter", {})  # messages that are not set are left out
    if limiter.get("target") and not limiter["valid"]:
        yield "is not vouched for by its limiter, and takes no leases"
    if status["oldest_wait_s"] >= LONG_WAIT_S:
        yield f"has {_some(status['queued'], 'program')} in its queue, the first for {span(status['oldest_wait_s'])}"
    if failed := change.outcomes().get("SANDBOX_ERROR"):
        yield f"failed {_some(failed, 'program')} by itself; its log says why"
    if failure := status.get("results", {}).get("failure"):
        yield f"keeps no results for its next life: {failure}"


def _wrong_rollouts(change: _Change) -> Iterator[str]:
    status = change.now
    if status["paused_s"]:
        yield f"has a paused engine, for {span(status['paused_s'])} more"
    for each in status["tenants"]:
        if each["ended"] and not each["streaming"]:
            yield f"has {_some(each['ended'], 'trajectory')}{_of(each['tenant'])} that ended, and nobody takes"
    ended, masked = change.count("ended_total"), change.count("masked_total")
    if ended and masked and masked >= MASKED * ended:
        yield f"masked {masked:.0f} of {ended:.0f} trajectories, because a service failed them"
    busy = change.count("engine_busy_s")
    running = _all(status, "running")
    if running and busy is not None and busy < IDLE * change.seconds and not status["paused_s"]:
        yield f"samples {busy / change.seconds:.0%} of the time, with {_some(running, 'trajectory')} running"


def _changes(kind: str, now: Moment, before: Moment | None) -> Iterator[tuple[str, _Change]]:
    known = {} if before is None else {each["target"]: each["status"] or {} for each in before.found[kind]}
    seconds = 0.0 if before is None else now.at_s - before.at_s
    for each in now.found[kind]:
        if each["status"] is None:
            continue
        old = known.get(each["target"], {})
        same = seconds > 0 and bool(old) and old["uptime_s"] <= each["status"]["uptime_s"]
        yield each["target"], _Change(each["status"], old if same else {}, seconds)


def _limiter(now: Moment) -> Iterator[Table]:
    answer = now.found["limiter"]
    if answer is None or answer["status"] is None:
        return
    table = _table(f"limiter on {answer['target']}", "bucket", "in flight", "", "queued", "oldest", "grants/s")
    for bucket in answer["status"]["buckets"]:
        held, most = bucket["held"], bucket["effective_limit"]
        waits = span(bucket["oldest_wait_s"]) if bucket["queued"] else ""
        rate = f"{bucket['grants_per_s']:.1f}"
        row = (bucket["config"]["name"], f"{held}/{most}", _bar(held, most), str(bucket["queued"]), waits, rate)
        table.add_row(*map(Text, row))
    yield table


def _executors(now: Moment, before: Moment | None) -> Iterator[Table]:
    columns = ("running", "", "queued", "oldest", "sessions", "GiB", "ended/s", "otherwise")
    table = _table("executors", "address", *columns)
    for target, change in _changes("executors", now, before):
        status, ended = change.now, change.outcomes()
        memory = int(status["running_memory_bytes"]) + int(status["session_memory_bytes"])
        others = ", ".join(f"{count:.0f} {name}" for name, count in sorted(ended.items()) if name != "FINISHED")
        row = (
            target,
            f"{status['running']}/{status['max_running']}",
            _bar(status["running"], status["max_running"]),
            str(status["queued"]),
            span(status["oldest_wait_s"]) if status["queued"] else "",
            str(status["sessions"]),
            f"{memory / 2**30:.1f}/{int(status['program_memory_bytes']) / 2**30:.0f}",
            _rate(sum(ended.values()) if change.before else None, change.seconds),
            others,
        )
        table.add_row(*map(Text, row))
    if table.row_count:
        yield table


def _rollouts(now: Moment, before: Moment | None) -> Iterator[Table]:
    columns = ("model", "weights", "queued", "running", "", "ended", "ended/s", "masked", "engine")
    table = _table("rollout services", "address", *columns)
    for target, change in _changes("rollouts", now, before):
        status = change.now
        queued, running, ended = (_all(status, name) for name in ("queued", "running", "ended"))
        busy = change.count("engine_busy_s")
        row = (
            target,
            status["model"],
            status["weight_version"],
            str(queued),
            f"{running}/{status['concurrency']}",
            _bar(running, status["concurrency"]),
            str(ended),
            change.per_s("ended_total"),
            str(status["masked_total"]),
            "" if busy is None else f"{min(1.0, busy / change.seconds):.0%}",
        )
        table.add_row(*map(Text, row))
    if table.row_count:
        yield table


def _training(now: Moment) -> Iterator[Table]:
    if not now.step:
        return
    names = [name for name in _FIGURES if isinstance(now.step.get(name), int | float)]
    table = _table("training", "step", *(name.rpartition("/")[2] for name in names))
    table.add_row(str(now.step.get("step", "")), *(f"{now.step[name]:.4g}" for name in names))
    yield table


def _table(title: str, *columns: str) -> Table:
    """An empty table. Cells must be Text: as plain strings, names that others chose would be markup."""
    table = Table(title=Text(title, "bold"), title_justify="left", box=None, padding=(0, 1, 0, 0))
    for column in columns:
        table.add_column(column, header_style="dim", overflow="fold", min_width=len(column))
    return table


def _bar(part: int, whole: int) -> str:
    filled = round(_BAR * min(1.0, part / whole)) if whole else 0
    return "█" * filled + "░" * (_BAR - filled)


def _rate(count: float | None, seconds: float) -> str:
    return "" if count is None else f"{count / seconds:.1f}"


def _all(status: Status, name: str) -> int:
    """Trajectories of all tenants in a state."""
    return sum(each[name] for each in status["tenants"])


def _some(number: float, noun: str) -> str:
    plural = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
    return f"{number:.0f} {noun if number == 1 else plural}"


def _of(tenant: str) -> str:
    return f" of {tenant}" if tenant else ""
