"""A service that fails holds new trajectories back, and lets them in when it answers again."""

from __future__ import annotations

import asyncio

import pytest

from fairbox.testing import ManualClock
from rollout.tools.base import InfraError
from rollout.tools.breaker import Breaker, ServiceGate


class Service:
    """A service that can be down; counts what asks it."""

    def __init__(self) -> None:
        self.down = True
        self.probes = 0

    async def probe(self) -> None:
        self.probes += 1
        await asyncio.sleep(0)
        if self.down:
            raise InfraError("connection refused")


async def turns(count: int = 20) -> None:
    """Lets others go on."""
    for _ in range(count):
        await asyncio.sleep(0)


def failed(gate: ServiceGate) -> None:
    with pytest.raises(InfraError), gate.noted():
        raise InfraError("connection refused")


def test_probes_come_at_once_and_then_further_and_further_apart() -> None:
    breaker = Breaker(60.0)
    breaker.failed("a", 100.0)
    assert (breaker.open, breaker.pause(100.0)) == (True, 0.0)
    pauses = []
    for _ in range(8):
        breaker.probe_failed("b", 100.0)
        pauses.append(breaker.pause(100.0))
    assert pauses == [0.5, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0, 10.0]
    breaker.succeeded()
    breaker.failed("c", 200.0)
    assert breaker.pause(200.0) == 0.0


def test_a_service_that_has_failed_for_too_long_is_given_up() -> None:
    breaker = Breaker(patience_s=60.0)
    breaker.failed("refused", 0.0)
    assert not breaker.refusal(1000.0)  # nobody has asked it since
    breaker.probe_failed("connection refused", 59.0)
    assert not breaker.refusal(59.0)
    breaker.probe_failed("connection refused", 61.0)
    assert breaker.refusal(61.0) == "the service has been failing for 61 s: connection refused"
    breaker.succeeded()
    assert not breaker.refusal(62.0)


async def test_a_service_that_works_is_not_asked() -> None:
    gate, service = ServiceGate(ManualClock(), patience_s=60.0), Service()
    with gate.noted():
        pass
    await gate.passed(service.probe)
    assert service.probes == 0


async def test_a_single_failure_costs_one_probe() -> None:
    gate, service = ServiceGate(ManualClock(), patience_s=60.0), Service()
    failed(gate)
    service.down = False
    await asyncio.gather(*(gate.passed(service.probe) for _ in range(50)))
    assert (service.probes, gate.open, gate.waiting) == (1, False, 0)


async def test_those_who_wait_go_on_when_a_call_succeeds() -> None:
    """One that was under way: nobody has to wait for the next probe."""
    gate, service = ServiceGate(ManualClock(), patience_s=60.0), Service()
    failed(gate)
    waiting = [asyncio.create_task(gate.passed(service.probe)) for _ in range(3)]
    await turns()
    assert (service.probes, gate.waiting) == (1, 3)
    with gate.noted(answers=False):
        pass
    assert gate.open
    with gate.noted():
        pass
    await asyncio.wait_for(asyncio.gather(*waiting), 5)
    assert (service.probes, gate.waiting) == (1, 0)


async def test_one_that_is_cancelled_leaves_the_probe_to_the_next() -> None:
    gate, service = ServiceGate(ManualClock(), patience_s=60.0), Service()
    failed(gate)
    first, second = (asyncio.create_task(gate.passed(service.probe)) for _ in range(2))
    await turns()
    service.down = False
    first.cancel()
    await asyncio.wait_for(second, 5)
    assert first.cancelled()
    assert (service.probes, gate.open, gate.waiting) == (2, False, 0)


async def test_all_who_wait_are_refused_together_when_it_has_failed_for_too_long() -> None:
    clock, service = ManualClock(), Service()
    gate = ServiceGate(clock, patience_s=60.0)
    failed(gate)
    clock.advance(61.0)
    ends = await asyncio.gather(*(gate.passed(service.probe) for _ in range(20)), return_exceptions=True)
    assert {str(end) for end in ends} == {"the service has been failing for 61 s: connection refused"}
    assert service.probes == 1
    clock.advance(10.0)
    service.down = False
    await gate.passed(service.probe)
    assert not gate.open
