"""The status as tables for a terminal, narrow enough for 80 columns, and as plain data for programs."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message
from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from executor_service.v1 import executor_pb2
from limiter.v1 import limiter_pb2
from rollout.status.client import HOLDERS, ExecutorStatus, LimiterStatus, Status

__all__ = ["as_data", "as_tables"]

_SHOWN = 10
"""Holders and sessions that are listed one by one."""
# Protobuf renamed the parameter in version 5, and both are in use.
_DEFAULTS = (
    "always_print_fields_with_no_presence"
    if "always_print_fields_with_no_presence" in inspect.signature(MessageToDict).parameters
    else "including_default_value_fields"
)


def as_data(status: Status) -> dict[str, Any]:
    """Names as in the protos, defaults filled in; 64-bit numbers are strings, as protobuf's JSON has them."""
    limiter: dict[str, Any] | None = None
    if (found := status.limiter) is not None:
        limiter = {"target": found.target, "problem": found.problem, "status": _plain(found.status)}
        limiter |= {"leases": [_plain(lease) for lease in found.leases], "leader": found.leader}
    executors = [
        {"target": each.target, "problem": each.problem, "status": _plain(each.status)} for each in status.executors
    ]
    return {"limiter": limiter, "executors": executors}


def _plain(message: Message | None) -> dict[str, Any] | None:
    if message is None:
        return None
    options: dict[str, Any] = {"preserving_proto_field_name": True, _DEFAULTS: True}
    return MessageToDict(message, **options)


def as_tables(status: Status) -> RenderableType:
    """Everything, for a person."""
    parts = [] if status.limiter is None else [_limiter(status.limiter)]
    return Group(*parts, *(_executor(each) for each in status.executors))


def _limiter(found: LimiterStatus) -> RenderableType:
    status = found.status
    if status is None:
        return Text(found.problem, style="red")
    title = Text(f"limiter {status.version} on {found.target}: ")
    if not status.leader:
        return title.append(f"standing by; it {found.leader}" if found.leader else "standing by", style="yellow")
    title.append(f"leads in epoch {status.epoch}, up {_span(status.uptime_s)}")
    parts: list[RenderableType] = [title]
    if status.recovering:
        missing = ", ".join(_listed(status.missing_executors)) or "executors of an earlier limiter that nobody knows"
        text = f"recovering: grants nothing for {status.recovering_for_s:.1f} s at most; waits for {missing}"
        parts.append(Text(text, style="yellow"))
    parts.append(_buckets(status.buckets))
    if found.leases:
        parts.append(_holders(found.leases))
    parts.append(_sessions(status.sessions))
    parts.append(Text("  ports: ").append(_guard(status.security, status.insecure)))
    return Group(*parts)


def _guard(security: limiter_pb2.SecurityStatus | executor_pb2.SecurityStatus, insecure: bool) -> Text:
    """What guards the ports; yellow where nothing does, or where files are not in use."""
    tls = "TLS with certificates of clients" if security.mutual_tls else "TLS" if security.tls else "no TLS"
    parts = [tls]
    if security.certificate_expires_at_s:
        until = datetime.fromtimestamp(security.certificate_expires_at_s, UTC)
        parts.append(f"certificate until {until:%Y-%m-%d %H:%M} UTC")
    counts = ", ".join(f"{each.count} {each.role}" for each in security.tokens)
    parts.append(f"tokens: {counts}" if counts else "no tokens")
    text = Text("; ".join(parts))
    if insecure:
        text.append("; insecure: strangers may come in", style="yellow")
    for problem in security.problems:
        text.append(f"; {problem}", style="yellow")
    return text


def _buckets(buckets: Iterable[limiter_pb2.BucketStatus]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=0)
    for column in ("bucket", "limit", "held", "bound", "queued", "oldest", "grants/s", "p50", "p99", "refused"):
        table.add_column(column, justify="left" if column == "bucket" else "right", no_wrap=column != "bucket")
    for bucket in buckets:
        limit = f"{bucket.effective_limit}"
        if bucket.effective_limit != bucket.config.max_in_flight:
            limit += f"/{bucket.config.max_in_flight}"
        name = Text(bucket.config.name)
        if bucket.config.paused:
            name.append(" (paused)", style="yellow")
        table.add_row(
            name,
            limit,
            str(bucket.held),
            str(bucket.bound),
            str(bucket.queued),
            _span(bucket.oldest_wait_s),
            f"{bucket.grants_per_s:.1f}",
            _span(bucket.wait_p50_s),
            _span(bucket.wait_p99_s),
            str(bucket.rejected_total),
        )
    return table


def _holders(leases: tuple[limiter_pb2.LeaseInfo, ...]) -> Table:
    """Who holds tokens, the oldest lease first."""
    held: Counter[tuple[str, str, str]] = Counter()
    oldest: dict[tuple[str, str, str], limiter_pb2.LeaseInfo] = {}
    for info in leases:
        state = limiter_pb2.LeaseState.Name(info.state).removeprefix("LEASE_STATE_").lower()
        key = (info.holder_name or info.holder_session_id, info.lease.bucket, state)
        held[key] += info.tokens
        if key not in oldest or info.age_s > oldest[key].age_s:
            oldest[key] = info
    table = Table(box=box.SIMPLE_HEAD, padding=0)
    for column in ("holder", "bucket", "state", "tokens", "oldest", "its run"):
        table.add_column(column, justify="right" if column in ("tokens", "oldest") else "left")
    for key in sorted(oldest, key=lambda each: -oldest[each].age_s)[:_SHOWN]:
        info = oldest[key]
        names = [Text(part) for part in key]
        table.add_row(*names, str(held[key]), _span(info.age_s), Text(info.run_id or info.request_id))
    if len(oldest) > _SHOWN:
        table.add_row(f"and {len(oldest) - _SHOWN} more", "", "", "", "", "")
    if len(leases) == HOLDERS:
        table.caption = f"of the {HOLDERS} oldest leases"
    return table


def _sessions(sessions: Iterable[limiter_pb2.SessionStatus]) -> Text:
    """How many of which kind, and who is away."""
    counts: Counter[str] = Counter()
    away = []
    for session in sessions:
        counts["executor" if session.kind == limiter_pb2.SESSION_KIND_EXECUTOR else "client"] += 1
        if not session.connected and (session.held or session.queued):
            away.append(f"{session.name or session.session_id} ({_span(session.idle_s)})")
    text = Text(f"  sessions: {counts['executor']} of executors, {counts['client']} of clients")
    if away:
        text.append(f"; not connected, and hold or wait: {', '.join(_listed(away))}", style="yellow")
    return text


def _executor(found: ExecutorStatus) -> RenderableType:
    status = found.status
    if status is None:
        return Text(found.problem, style="red")
    title = Text(f"executor {status.version} on {found.target}: {status.served_by}, up {_span(status.uptime_s)}")
    if status.draining:
        title.append(", draining", style="yellow")
    table = Table(show_header=False, box=box.SIMPLE, padding=(0, 1, 0, 0))
    isolation = executor_pb2.IsolationLevel.Name(status.isolation_level).removeprefix("ISOLATION_LEVEL_").lower()
    table.add_row("isolation", isolation)
    table.add_row("running", f"{status.running} of {status.max_running}, {status.sessions} sessions")
    table.add_row("queued", f"{status.queued} of {status.max_queued}, oldest {_span(status.oldest_wait_s)}")
    limiter = status.limiter
    state = "valid" if limiter.valid else "not valid"
    table.add_row("limiter", Text(f"{limiter.target}, {state}, {limiter.bound} bound"))
    table.add_row("ports", _guard(status.security, status.insecure))
    table.add_row("languages", ", ".join(language.name for language in status.languages if language.installed))
    outcomes = (f"{_outcome(item.outcome)} {item.count}" for item in status.outcomes if item.count)
    table.add_row("runs ended", ", ".join(outcomes) or "none")
    return Group(title, table)


def _outcome(outcome: executor_pb2.Outcome.ValueType) -> str:
    return executor_pb2.Outcome.Name(outcome).removeprefix("OUTCOME_")


def _listed(names: Iterable[str]) -> list[str]:
    """The first few, and how many more there are."""
    every = list(names)
    return every if len(every) <= _SHOWN else [*every[:_SHOWN], f"and {len(every) - _SHOWN} more"]


def _span(seconds: float) -> str:
    """A duration with as many digits as matter."""
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
