"""The operators' service over real gRPC."""

from __future__ import annotations

import asyncio

import grpc
import grpc.aio

from limiter import ExecutorSession, LimiterClient
from limiter.v1 import limiter_pb2 as pb
from tests.limiter.servers import admin_stub, code_of, lease_message, limiter_server


async def test_status_shows_buckets_and_sessions() -> None:
    async with (
        limiter_server(2) as server,
        admin_stub(server) as admin,
        LimiterClient(server.address, name="rollout-0") as client,
        client.lease(),
    ):
        status = await admin.GetStatus(pb.GetStatusRequest())
        assert (status.leader, status.epoch > 0, len(status.buckets)) == (True, True, 1)
        bucket = status.buckets[0]
        assert (bucket.config.name, bucket.config.max_in_flight, bucket.held, bucket.bound) == ("code", 2, 1, 0)
        assert [(each.name, each.connected, each.held) for each in status.sessions] == [("rollout-0", True, 1)]


async def test_leases_are_listed_in_pages() -> None:
    async with (
        limiter_server(3) as server,
        admin_stub(server) as admin,
        LimiterClient(server.address) as client,
        ExecutorSession(server.address, executor_id="e") as executor,
        client.lease() as bound,
        client.lease(),
        client.lease(),
    ):
        await executor.bind(bound, run_id="run-1")
        leases = await admin.ListLeases(pb.ListLeasesRequest(page_size=2))
        first = leases.leases[0]
        assert (first.state, first.holder_name, first.run_id) == (pb.LEASE_STATE_BOUND, "e", "run-1")
        rest = await admin.ListLeases(pb.ListLeasesRequest(page_size=2, page_token=leases.next_page_token))
        assert [len(leases.leases), len(rest.leases), rest.next_page_token] == [2, 1, ""]
        bad_token = admin.ListLeases(pb.ListLeasesRequest(page_token="x"))
        assert await code_of(bad_token) is grpc.StatusCode.INVALID_ARGUMENT
        bad_size = admin.ListLeases(pb.ListLeasesRequest(page_size=1001))
        assert await code_of(bad_size) is grpc.StatusCode.INVALID_ARGUMENT


async def test_revoke_spares_a_held_lease_without_force() -> None:
    """Work may run under it, and nobody could kill that."""
    async with (
        limiter_server(1, max_hold_s=60.0) as server,
        admin_stub(server) as admin,
        LimiterClient(server.address) as client,
        client.lease(hold=30.0) as held,
    ):
        spared = admin.RevokeLease(pb.RevokeLeaseRequest(lease=lease_message(held)))
        assert await code_of(spared) is grpc.StatusCode.FAILED_PRECONDITION
        assert [lease.state for lease in (await admin.ListLeases(pb.ListLeasesRequest())).leases] == [
            pb.LEASE_STATE_HELD
        ]
        answer = await admin.RevokeLease(pb.RevokeLeaseRequest(lease=lease_message(held), force=True))
        assert answer.state == pb.LEASE_STATE_UNSPECIFIED
        assert not (await admin.ListLeases(pb.ListLeasesRequest())).leases


async def test_revoke_ends_a_granted_lease_and_spares_a_bound_one_without_force() -> None:
    async with (
        limiter_server(2) as server,
        admin_stub(server) as admin,
        LimiterClient(server.address) as client,
        ExecutorSession(server.address) as executor,
        client.lease() as bound,
        client.lease() as loose,
    ):
        await executor.bind(bound)
        lost = asyncio.Event()
        executor.when_lost(bound, lost.set)
        answer = await admin.RevokeLease(pb.RevokeLeaseRequest(lease=lease_message(loose)))
        assert answer.state == pb.LEASE_STATE_UNSPECIFIED
        spared = admin.RevokeLease(pb.RevokeLeaseRequest(lease=lease_message(bound)))
        assert await code_of(spared) is grpc.StatusCode.FAILED_PRECONDITION
        answer = await admin.RevokeLease(pb.RevokeLeaseRequest(lease=lease_message(bound), force=True))
        assert answer.state == pb.LEASE_STATE_REVOKING
        await asyncio.wait_for(lost.wait(), 5)
        unknown = admin.RevokeLease(pb.RevokeLeaseRequest(lease=lease_message(loose)))
        assert await code_of(unknown) is grpc.StatusCode.NOT_FOUND
