"""The client's session as a pure machine: what it says, and what it makes of what it hears."""

from __future__ import annotations

import pytest

from fairbox.v1 import common_pb2
from limiter import BindOutcome, BindStatus, Lease, ReleaseOutcome
from limiter.client.machine import SessionMachine
from limiter.client.session_events import Lost
from limiter.core import SessionKind
from limiter.v1 import limiter_pb2 as pb

LEASE = common_pb2.Lease(bucket="code", epoch=5, seq=1, client_session_id="s")


def open_machine(kind: SessionKind = SessionKind.CLIENT) -> SessionMachine:
    machine = SessionMachine(kind, "name")
    machine.connected(0.0)
    machine.take_frame(0.0)
    machine.received(welcome(heartbeat_ack=1 if kind is SessionKind.EXECUTOR else 0), 0.0)
    return machine


def welcome(epoch: int = 5, heartbeat_ack: int = 0, unknown: tuple[common_pb2.Lease, ...] = ()) -> pb.SessionResponse:
    return pb.SessionResponse(welcome=pb.Welcome(epoch=epoch, ttl_s=6.0, unknown=unknown), heartbeat_ack=heartbeat_ack)


def ask(machine: SessionMachine, now: float = 0.0) -> str:
    return machine.acquire(now, bucket="code", tokens=1, queue_timeout=10.0)


def grant(machine: SessionMachine, request_id: str, lease: common_pb2.Lease = LEASE) -> list[object]:
    answer = pb.SessionResponse(grants=[pb.Grant(request_id=request_id, lease=lease)])
    return list(machine.received(answer, 0.0))


def frame(machine: SessionMachine, now: float = 0.0) -> pb.SessionRequest:
    taken = machine.take_frame(now)
    assert taken is not None
    return taken


def test_nothing_but_the_hello_is_sent_before_the_welcome() -> None:
    machine = SessionMachine(SessionKind.CLIENT, "s")
    machine.connected(0.0)
    assert frame(machine).HasField("hello")
    ask(machine)
    assert machine.take_frame(0.0) is None
    machine.received(welcome(), 0.0)
    assert len(frame(machine).acquires) == 1
    assert machine.take_frame(0.0) is None


def test_hello_lists_what_is_held_and_what_waits_with_its_ticket_and_the_time_left() -> None:
    machine = open_machine()
    held, waits = ask(machine), ask(machine)
    frame(machine)
    grant(machine, held)
    ticket = pb.Ticket(epoch=5, seq=9, proof=b"proof")
    machine.received(pb.SessionResponse(queued=[pb.Queued(request_id=waits, ticket=ticket)]), 0.0)
    assert machine.disconnected() == []
    machine.connected(4.0)
    hello = frame(machine, 4.0).hello
    assert [held.lease for held in hello.held] == [LEASE]
    assert [(each.request_id, each.ticket, each.queue_timeout_s) for each in hello.queued] == [(waits, ticket, 6.0)]


def test_each_hello_has_a_higher_number_than_those_before() -> None:
    machine = open_machine(SessionKind.EXECUTOR)
    for number in (2, 3):
        machine.disconnected()
        machine.connected(1.0)
        assert frame(machine).hello.connection == number


def test_request_that_is_abandoned_before_it_was_sent_is_not_sent() -> None:
    machine = open_machine()
    machine.abandon(ask(machine))
    assert machine.take_frame(0.0) is None


def test_grant_that_nobody_waits_for_is_given_back() -> None:
    machine = open_machine()
    request = ask(machine)
    frame(machine)
    machine.abandon(request)
    assert [each.request_id for each in frame(machine).cancels] == [request]
    assert grant(machine, request) == []
    assert [each.lease for each in frame(machine).releases] == [LEASE]
    assert not machine.holdings.held


def test_frames_hold_at_most_512_items() -> None:
    machine = open_machine()
    for _ in range(1000):
        ask(machine)
    assert [len(frame(machine).acquires), len(frame(machine).acquires)] == [512, 488]


def test_bind_that_is_given_up_before_it_was_sent_is_not_sent() -> None:
    machine = open_machine(SessionKind.EXECUTOR)
    machine.bind(Lease.of(LEASE), "run")
    machine.release(Lease.of(LEASE), ReleaseOutcome.UNUSED)
    assert machine.take_frame(0.0) is None


def test_bind_that_is_given_up_on_its_way_is_released() -> None:
    machine = open_machine(SessionKind.EXECUTOR)
    machine.bind(Lease.of(LEASE), "run")
    assert len(frame(machine).binds) == 1
    machine.release(Lease.of(LEASE), ReleaseOutcome.UNUSED)
    assert [each.lease for each in frame(machine).releases] == [LEASE]
    answer = pb.SessionResponse(bind_results=[pb.BindResult(lease=LEASE, status=pb.BIND_STATUS_BOUND)])
    assert machine.received(answer, 0.0) == []
    assert not machine.holdings.held


def test_lost_connection_leaves_binds_unanswered_and_keeps_what_is_bound() -> None:
    machine = open_machine(SessionKind.EXECUTOR)
    bound, asked = Lease.of(LEASE), Lease("code", 5, 2, "s")
    machine.bind(bound, "run")
    frame(machine)
    answer = pb.SessionResponse(bind_results=[pb.BindResult(lease=LEASE, status=pb.BIND_STATUS_BOUND)])
    (news,) = machine.received(answer, 0.0)
    assert isinstance(news, BindOutcome)
    assert news.status is BindStatus.BOUND
    machine.bind(asked, "run")
    frame(machine)
    assert machine.disconnected() == [asked]
    machine.connected(1.0)
    assert [held.lease for held in frame(machine, 1.0).hello.held] == [LEASE]


def test_validity_counts_from_the_sending_of_the_acknowledged_heartbeat() -> None:
    machine = open_machine(SessionKind.EXECUTOR)
    assert machine.valid_until == pytest.approx(6.0 * 0.98)
    assert machine.next_deadline() == 1.5
    assert machine.take_frame(1.4) is None
    assert frame(machine, 1.5).heartbeat == 2
    assert frame(machine, 3.0).heartbeat == 3
    machine.received(pb.SessionResponse(heartbeat_ack=2), 3.2)
    assert machine.valid_until == pytest.approx(1.5 + 6.0 * 0.98)
    machine.received(pb.SessionResponse(heartbeat_ack=99), 3.3)
    assert machine.valid_until == pytest.approx(1.5 + 6.0 * 0.98)


def test_missing_acknowledgements_mean_a_dead_connection() -> None:
    machine = open_machine(SessionKind.EXECUTOR)
    frame(machine, 1.5)
    assert not machine.stalled(4.5)
    assert machine.stalled(4.6)
    machine.disconnected()
    assert not machine.stalled(9.0)


def test_executor_that_is_not_welcomed_yet_has_no_heartbeat_to_send() -> None:
    machine = open_machine(SessionKind.EXECUTOR)
    assert machine.next_deadline() == 1.5
    machine.disconnected()
    machine.connected(1.0)
    frame(machine, now=1.0)
    assert machine.take_frame(4.0) is None
    assert machine.next_deadline() is None, "a writer that waits for it would run in circles"
    machine.received(welcome(heartbeat_ack=2), 4.0)
    assert machine.next_deadline() == 5.5


def place_of(machine: SessionMachine, lease: Lease, epoch: int) -> tuple[int, int]:
    """Ticket under which a lease is asked for instead of another, of a limiter of that epoch."""
    machine.disconnected()
    machine.acquire(1.0, bucket="code", tokens=1, queue_timeout=10.0, instead_of=lease)
    machine.connected(1.0)
    for acquire in frame(machine, 1.0).hello.queued:
        assert not acquire.HasField("ticket"), "whether it may take the place is not known yet"
    machine.received(welcome(epoch), 1.0)
    sent = machine.take_frame(1.0)
    return (sent.acquires[0].ticket.epoch, sent.acquires[0].ticket.seq) if sent is not None else (0, 0)


@pytest.mark.parametrize(("epoch", "place"), [(6, (5, 7)), (5, (0, 0))])
def test_lease_that_is_void_after_a_restart_leaves_its_place(epoch: int, place: tuple[int, int]) -> None:
    machine, lease = open_machine(), Lease.of(LEASE)
    answer = pb.Grant(request_id=ask(machine), lease=LEASE, ticket=pb.Ticket(epoch=5, seq=7))
    frame(machine)
    machine.received(pb.SessionResponse(grants=[answer]), 0.0)
    assert place_of(machine, lease, epoch) == place
    again = machine.acquire(1.0, bucket="code", tokens=1, queue_timeout=10.0, instead_of=lease)
    assert machine.waiting[again].place is None, "it is taken once"


def test_lease_that_was_used_leaves_no_place() -> None:
    machine, lease = open_machine(), Lease.of(LEASE)
    answer = pb.Grant(request_id=ask(machine), lease=LEASE, ticket=pb.Ticket(epoch=5, seq=7))
    frame(machine)
    machine.received(pb.SessionResponse(grants=[answer]), 0.0)
    machine.release(lease, ReleaseOutcome.OK)
    assert place_of(machine, lease, 6) == (0, 0)


def test_lost_lease_is_dropped_by_a_client_and_listed_by_an_executor_until_its_work_is_dead() -> None:
    client = open_machine()
    grant(client, ask(client))
    client.disconnected()
    client.connected(1.0)
    frame(client, 1.0)
    news = client.received(welcome(unknown=(LEASE,)), 1.0)
    assert [type(each) for each in news] == [Lost]
    assert not client.holdings.held
    executor = open_machine(SessionKind.EXECUTOR)
    executor.bind(Lease.of(LEASE), "run")
    frame(executor)
    executor.received(pb.SessionResponse(bind_results=[pb.BindResult(lease=LEASE, status=pb.BIND_STATUS_BOUND)]), 0.0)
    executor.received(pb.SessionResponse(revokes=[pb.Revoke(lease=LEASE, reason="why")]), 0.0)
    assert list(executor.holdings.held) == [Lease.of(LEASE)]
    executor.release(Lease.of(LEASE), ReleaseOutcome.ERROR)
    assert frame(executor).releases[0].outcome == pb.RELEASE_OUTCOME_ERROR
