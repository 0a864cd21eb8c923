"""`limiter.v1.LimiterAdminService`: shows the live state, changes buckets, takes leases back. On a port of its own."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio

from fairbox.errors import FieldError, FieldErrors
from fairbox.net.fields import Fields
from fairbox.net.grpc_errors import abort_fields
from fairbox.v1.common_pb2 import SecurityStatus
from limiter.config import MAX_BUCKETS
from limiter.core import LeaseId, LeaseState
from limiter.core.effects import Configured, RevokeAnswered
from limiter.core.events import Configure, Revoke
from limiter.core.reasons import UNBOUND
from limiter.server.convert import (
    bucket_config_message,
    bucket_limits,
    bucket_message,
    lease_info_message,
    session_message,
)
from limiter.server.leader_term import LeaderTerm
from limiter.v1 import limiter_pb2 as pb
from limiter.v1 import limiter_pb2_grpc

if TYPE_CHECKING:
    Context = grpc.aio.ServicerContext[Any, Any]

_LOG = logging.getLogger("limiter")
ADMIN_SERVICE_NAME = "limiter.v1.LimiterAdminService"
_MAX_SESSIONS = 1_000
_PAGE = 100
_MAX_PAGE = 1_000


class LimiterAdminService(limiter_pb2_grpc.LimiterAdminServiceServicer):
    """The operators' service."""

    def __init__(
        self, term: LeaderTerm, *, version: str, insecure: bool, security: Callable[[], SecurityStatus]
    ) -> None:
        """`security`: what guards the ports at this moment."""
        self._term = term
        self._security = security
        self._version = version
        self._insecure = insecure

    async def GetStatus(self, request: pb.GetStatusRequest, context: Context) -> pb.GetStatusResponse:
        """The state at one instant."""
        runner, term = self._term.runner, self._term
        status = pb.GetStatusResponse(version=self._version, insecure=self._insecure, security=self._security())
        if runner is None or term.leads:
            status.leader_name = term.leadership.leader
        if runner is None:
            return status
        core, now = runner.core, runner.clock.now()
        statistics = core.statistics(now)
        status.epoch, status.leader, status.uptime_s = statistics.epoch, term.leads, statistics.uptime
        status.recovering, status.recovering_for_s = statistics.recovering, statistics.recovering_for
        status.missing_executors.extend(statistics.missing)
        status.buckets.extend(bucket_message(bucket) for bucket in statistics.buckets)
        status.sessions.extend(session_message(session, now) for session in core.sessions(_MAX_SESSIONS))
        return status

    async def ListLeases(self, request: pb.ListLeasesRequest, context: Context) -> pb.ListLeasesResponse:
        """One page of the leases in hand."""
        fields = Fields()
        size = fields.count("page_size", request.page_size, default=_PAGE, most=_MAX_PAGE)
        await fields.check_call(context)
        runner = await self._term.take(context)
        try:
            found = runner.core.leases(after=request.page_token, limit=size)
        except ValueError:
            fields.refuse(
                "page_token", f"is {request.page_token[:40]!r}, must be the next_page_token of an earlier page"
            )
            await fields.check_call(context)
            raise AssertionError("a refused call does not return") from None
        token, now = str(found[-1].lease_id) if len(found) == size else "", runner.clock.now()
        return pb.ListLeasesResponse(leases=[lease_info_message(each, now) for each in found], next_page_token=token)

    async def RevokeLease(self, request: pb.RevokeLeaseRequest, context: Context) -> pb.RevokeLeaseResponse:
        """Takes a lease back."""
        fields = Fields()
        fields.text("reason", request.reason, longest=256)
        await fields.check_call(context)
        lease = LeaseId(request.lease.epoch, request.lease.seq)
        runner = await self._term.take(context)
        effects = runner.apply(Revoke(lease, request.force, request.reason or "revoked by an operator"))
        was = next((effect.was for effect in reversed(effects) if isinstance(effect, RevokeAnswered)), None)
        if was is None:
            await self._term.take(context)
            await context.abort(grpc.StatusCode.NOT_FOUND, f"lease {lease} is not known")
        if not request.force and was is not LeaseState.GRANTED:
            held = "has a hold time, and work may run under it; with force it ends now, and nobody kills the work"
            bound = "is bound; with force its executor is told to kill the work"
            message = f"lease {lease} {held if was is LeaseState.HELD else bound}"
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, message)
        if was in UNBOUND:
            return pb.RevokeLeaseResponse()
        return pb.RevokeLeaseResponse(state=pb.LEASE_STATE_REVOKING)

    async def ConfigureBucket(self, request: pb.ConfigureBucketRequest, context: Context) -> pb.ConfigureBucketResponse:
        """Creates a bucket or changes it."""
        expected = request.expected_version
        try:
            limits = bucket_limits(request.config, "config")
            runner = await self._term.take(context)
            if not expected and len(runner.core.statistics(runner.clock.now()).buckets) >= MAX_BUCKETS:
                raise FieldErrors(
                    [FieldError("config.name", f"is a new one, and there are {MAX_BUCKETS}, all that may")]
                )
        except FieldErrors as errors:
            await abort_fields(context, errors)
        answer = next(
            (each for each in runner.apply(Configure(limits, expected)) if isinstance(each, Configured)), None
        )
        if answer is None:
            await self._term.take(context)
            await context.abort(grpc.StatusCode.UNAVAILABLE, "this limiter does not lead any more")
            raise AssertionError("abort() does not return")
        if not answer.changed:
            there = f"version {answer.version}" if answer.version else "not there"
            wanted = f"version {expected}" if expected else "a new one"
            message = f"bucket {limits.name} is {there}, the change is for {wanted}; read it again and decide anew"
            await context.abort(grpc.StatusCode.ABORTED, message)
        _LOG.info("bucket %s was changed by an operator, version %d", limits.name, answer.version)
        return pb.ConfigureBucketResponse(config=bucket_config_message(replace(limits, version=answer.version)))
