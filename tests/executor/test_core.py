"""The pure parts: who runs and waits, which ids are known, what a limit is, what an outcome is called."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from executor_service.errors import RunLost
from executor_service.guest.watch import SAMPLE_S, TICK_S, Reading, Watch
from executor_service.model import Cause, Limits, Outcome, Output
from executor_service.programs.verdict import judge
from executor_service.runs.admission import Admission, Memory, Place, QueueFull
from executor_service.runs.dedup import DedupTable
from executor_service.runs.shares import lender, share_of
from executor_service.sandbox.report import Killed, Report
from fairbox.errors import FieldErrors

Table = DedupTable[str, str]


def started(*places: Place) -> list[bool]:
    return [place.started.is_set() for place in places]


def test_a_full_queue_refuses_with_advice_and_changes_nothing() -> None:
    admission = Admission(max_running=1, max_queued=1)
    admission.enter(0, eligible=True)
    admission.enter(0, eligible=True)
    before = admission.statistics(5)
    with pytest.raises(QueueFull) as caught:
        admission.enter(5, eligible=True)
    assert caught.value.retry_after_s > 0
    assert admission.statistics(5) == before
    assert before.oldest_wait_s == 5


def test_no_queue_at_all_still_lets_free_slots_be_used() -> None:
    admission = Admission(max_running=1, max_queued=0)
    assert started(admission.enter(0, eligible=True)) == [True]
    with pytest.raises(QueueFull):
        admission.enter(0, eligible=True)


def test_a_request_waits_for_the_memory_that_it_asks_for_and_nobody_passes_it() -> None:
    admission = Admission(max_running=4, max_queued=9, max_bytes=10)
    first, large, small = (admission.enter(0, eligible=True, memory=Memory(size)) for size in (4, 8, 1))
    assert started(first, large, small) == [True, False, False]
    assert not admission.has_room(Memory(1))
    counts = admission.statistics(0)
    assert (counts.running_memory_bytes, counts.program_memory_bytes, counts.running, counts.queued) == (4, 10, 1, 2)
    admission.leave(first, 1)
    assert started(large, small) == [True, True]
    assert admission.statistics(1).running_memory_bytes == 9
    assert admission.has_room(Memory(1))
    assert not admission.has_room(Memory(2))


def test_whoever_asks_for_more_than_there_is_runs_alone() -> None:
    admission = Admission(max_running=4, max_queued=9, max_bytes=10)
    small, huge, other = (admission.enter(0, eligible=True, memory=Memory(size)) for size in (1, 11, 1))
    assert started(small, huge, other) == [True, False, False]
    admission.leave(small, 1)
    assert started(huge, other) == [True, False]
    admission.leave(huge, 1)
    assert started(other) == [True]


def test_one_that_waits_for_memory_and_gives_up_lets_the_others_in() -> None:
    admission = Admission(max_running=4, max_queued=9, max_bytes=10)
    first, large, small = (admission.enter(0, eligible=True, memory=Memory(size)) for size in (4, 8, 1))
    admission.leave(large, 1)
    assert started(first, small) == [True, True]
    assert admission.statistics(1).running_memory_bytes == 5


def test_what_a_session_keeps_is_free_for_its_own_cells_alone() -> None:
    admission = Admission(max_running=4, max_queued=9, max_bytes=10)
    session = Memory(6)
    admission.keep(session, 5, 0)
    assert admission.statistics(0).session_memory_bytes == 5
    small, large = (admission.enter(0, eligible=True, memory=Memory(size)) for size in (1, 5))
    assert started(small, large) == [True, False]
    admission.keep(session, 4, 1)
    assert started(large) == [True]
    cell, branch = (admission.enter(2, eligible=True, memory=session) for _ in range(2))
    assert started(cell, branch) == [False, False]
    admission.leave(large, 3)
    assert started(cell, branch) == [True, True]
    counts = admission.statistics(3)
    assert (counts.running_memory_bytes, counts.session_memory_bytes) == (7, 0)
    admission.keep(session, 99, 4)
    admission.leave(branch, 4)
    assert admission.statistics(4).running_memory_bytes == 7
    admission.leave(cell, 5)
    counts = admission.statistics(5)
    assert (counts.running_memory_bytes, counts.session_memory_bytes) == (1, 6), "no more than it may have"


STEP = st.sampled_from(["enter", "wait", "cell", "keep", "eligible", "leave"])


@given(st.lists(st.tuples(STEP, st.integers(0, 9)), max_size=60))
def test_memory_is_never_promised_twice(steps: list[tuple[str, int]]) -> None:
    admission = Admission(max_running=3, max_queued=20, max_bytes=10)
    inside: list[Place] = []
    sessions = [Memory(4), Memory(7)]
    for now, (step, number) in enumerate(steps):
        before = [place for place in inside if place.started.is_set()]
        if step in ("enter", "wait", "cell"):
            memory = sessions[number % 2] if step == "cell" else Memory(number)
            expected = admission.has_room(memory)
            inside.append(admission.enter(now, eligible=step != "wait", memory=memory))
            assert inside[-1].started.is_set() == (expected and step != "wait")
        elif step == "keep":
            admission.keep(sessions[number % 2], number // 2, now)
        elif inside and step == "eligible":
            admission.eligible(inside[number % len(inside)], now)
        elif inside:
            admission.leave(inside.pop(number % len(inside)), now)
        running = [place for place in inside if place.started.is_set()]
        ready = [place for place in inside if place.eligible and not place.started.is_set()]
        used = {place.memory: place.memory.most for place in running}
        kept = sum(each.kept for each in sessions if each not in used)
        counts = admission.statistics(now)
        assert (counts.running_memory_bytes, counts.session_memory_bytes) == (sum(used.values()), kept)
        if len(running) > 1 and any(place not in before for place in running):
            assert sum(used.values()) + kept <= 10
        assert len(running) <= 3
        if ready and len(running) < 3:
            first = min(ready, key=lambda place: place.number)
            assert running, "one always runs"
            assert sum(used.values()) + kept + first.memory.needed > 10, "it could run"


WEIGHTS = {"a": 2.0, "c": 0.5}
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["enter", "enter", "wait", "eligible", "leave"]), st.sampled_from("abc"), st.integers(0, 9)
    ),
    max_size=80,
)


def level(tenant: str, number: int) -> float:
    return number / WEIGHTS.get(tenant, 1.0)


@given(STEPS)
def test_admission_agrees_with_a_plain_model(steps: list[tuple[str, str, int]]) -> None:
    """First in, first out within a tenant; slots and places by weight between them; borrowed, and given back."""
    admission = Admission(max_running=3, max_queued=4, weights=WEIGHTS)
    waiting: list[Place] = []
    running: list[Place] = []
    gave_way: list[Place] = []

    def used(of: list[Place], tenant: str) -> int:
        return sum(place.tenant == tenant for place in of)

    for now, (step, tenant, number) in enumerate(steps):
        inside = [*running, *waiting]
        if step in ("enter", "wait"):
            eligible, victim = step == "enter", None
            if len(waiting) >= 4 and not (eligible and len(running) < 3):
                wanted = level(tenant, used(waiting, tenant) + 1)
                victim = max(reversed(waiting), key=lambda place: level(place.tenant, used(waiting, place.tenant)))
                ours = share_of(tenant, Counter(place.tenant for place in waiting), 4, WEIGHTS)
                if level(victim.tenant, used(waiting, victim.tenant)) <= wanted:
                    assert used(waiting, tenant) >= ours, "refused below its share"
                    with pytest.raises(QueueFull, match=f"max_queued.*share is {ours}$"):
                        admission.enter(now, eligible=eligible, tenant=tenant)
                    continue
            place = admission.enter(now, eligible=eligible, tenant=tenant)
            waiting.append(place)
            place.gives_way = lambda refusal, place=place: gave_way.append(place)  # type: ignore[misc]
            if victim is not None:
                lost = gave_way.pop()
                levels = [level(each.tenant, used(waiting, each.tenant)) for each in (lost, victim)]
                assert levels[0] == levels[1], "not whoever has borrowed most"
                assert lost is [other for other in waiting if other.tenant == lost.tenant][-1], "not its newest"
                waiting.remove(lost)
                admission.leave(lost, now)
        elif inside and step == "eligible":
            admission.eligible(inside[number % len(inside)], now)
        elif inside:
            place = inside[number % len(inside)]
            (running if place in running else waiting).remove(place)
            admission.leave(place, now)
        ready = [place for place in waiting if place.eligible] if len(running) < 3 else []
        begun = [place for place in waiting if place.started.is_set()]
        assert len(begun) == min(1, len(ready))
        for place in begun:
            assert place is next(other for other in ready if other.tenant == place.tenant), "passed within its tenant"
            least = min(level(other.tenant, used(running, other.tenant)) for other in ready)
            assert level(place.tenant, used(running, place.tenant)) == least
            waiting.remove(place)
            running.append(place)
        assert not gave_way
        counts = admission.statistics(now)
        assert (counts.running, counts.queued) == (len(running), len(waiting))
    for place in [*running, *waiting]:
        admission.leave(place, 100)
    assert not admission._lines, "a tenant that has gone is remembered"


def test_tenants_take_turns_at_a_single_slot_by_their_weights() -> None:
    admission = Admission(max_running=1, max_queued=1000, weights=WEIGHTS)
    places = [admission.enter(0, eligible=True, tenant=tenant) for tenant in "abc" for _ in range(100)]
    seen: list[str] = []
    for now in range(70):
        (running,) = [place for place in places if place.started.is_set()]
        places.remove(running)
        admission.leave(running, now)
        seen.append(running.tenant)
    assert [seen.count(tenant) for tenant in "abc"] == pytest.approx([40, 20, 10], abs=1)


@given(st.lists(st.sampled_from("abcd"), max_size=200), st.integers(1, 12))
def test_units_end_up_as_the_weights_say_and_none_goes_back_and_forth(wants: list[str], most: int) -> None:
    used: dict[str, int] = {}
    for tenant in [*wants, *"abcd" * most]:
        if sum(used.values()) == most:
            other = lender(tenant, used, WEIGHTS)
            if other is None:
                assert used.get(tenant, 0) >= share_of(tenant, used, most, WEIGHTS)
                continue
            used[other] -= 1
        used[tenant] = used.get(tenant, 0) + 1
    assert all(used.get(tenant, 0) >= share_of(tenant, used, most, WEIGHTS) for tenant in "abcd")
    assert all(lender(tenant, used, WEIGHTS) is None for tenant in "abcd")


def table(**bounds: float) -> Table:
    settings = {"max_ids": 100, "max_bytes": 1 << 20, "max_age_s": 10} | bounds
    return DedupTable(**settings)  # type: ignore[arg-type]


def test_an_id_goes_from_new_to_joined_to_done_to_forgotten() -> None:
    known = table()
    assert known.look_up("id", b"f", 0) == (None, None)
    known.begin("id", b"f", "run")
    assert known.look_up("id", b"f", 1) == ("run", None)
    known.end("id", "result", 6, 2)
    assert known.look_up("id", b"f", 11.9) == (None, "result")
    assert known.look_up("id", b"f", 12) == (None, None)
    assert known.deduplicated_total == 2
    assert known.statistics() == {"running": 0, "ended": 0, "bytes": 0}


@pytest.mark.parametrize("ended", [False, True])
def test_an_id_with_another_request_is_refused(ended: bool) -> None:
    known = table()
    known.begin("id", b"f", "run")
    if ended:
        known.end("id", "result", 6, 0)
    with pytest.raises(FieldErrors, match="request_id was used for another request"):
        known.look_up("id", b"g", 1)


def test_results_beyond_the_bytes_are_dropped_and_their_ids_still_known() -> None:
    known = table(max_bytes=3000)
    for request_id in "abc":
        known.begin(request_id, b"f", "run")
        known.end(request_id, "result", 800, 0)
    with pytest.raises(RunLost):
        known.look_up("a", b"f", 1)
    assert known.look_up("c", b"f", 1) == (None, "result")
    assert known.statistics()["bytes"] <= 3000


def test_ids_beyond_the_count_are_forgotten_and_running_ones_never() -> None:
    known = table(max_ids=2)
    known.begin("running", b"f", "run")
    for request_id in "abc":
        known.begin(request_id, b"f", "run")
        known.end(request_id, "result", 1, 0)
    assert known.look_up("a", b"f", 1) == (None, None)
    assert known.look_up("b", b"f", 1) == (None, "result")
    assert known.look_up("running", b"f", 9999) == ("run", None)


LIMITS = Limits(wall_time_s=5, cpu_time_s=3, memory_bytes=100, processes=4, output_bytes=10)


def report(killed: Killed = Killed.NOT, **facts: int | float) -> Report:
    values = {"code": 0, "signal": 0} | facts
    return Report(killed=killed, stdout=Output(), stderr=Output(), **values)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("facts", "outcome"),
    [
        (report(), Outcome.FINISHED),
        (report(code=2), Outcome.NONZERO_EXIT),
        (report(signal=11), Outcome.SIGNALED),
        (report(signal=9), Outcome.SIGNALED),
        (report(signal=9, cpu_s=3.0), Outcome.CPU_LIMIT),
        (report(signal=24, cpu_s=3.1), Outcome.CPU_LIMIT),
        (report(signal=11, cpu_s=3.1), Outcome.SIGNALED),
        (report(Killed.WALL, signal=9), Outcome.TIME_LIMIT),
        (report(Killed.CPU, signal=9), Outcome.CPU_LIMIT),
        (report(Killed.MEMORY, signal=9), Outcome.MEMORY_LIMIT),
        (report(Killed.PROCESSES, signal=9), Outcome.PROCESS_LIMIT),
        (report(Killed.OUTPUT, signal=9), Outcome.OUTPUT_LIMIT),
        (report(signal=9, oom_kills=1), Outcome.MEMORY_LIMIT),
        (report(code=1, denied_forks=3), Outcome.PROCESS_LIMIT),
    ],
)
def test_what_the_code_can_cause_is_policy(facts: Report, outcome: Outcome) -> None:
    assert judge(facts, LIMITS)[:2] == (outcome, Cause.POLICY)


def test_what_the_kernel_did_for_want_of_memory_elsewhere_is_infra_unless_the_program_had_too_much() -> None:
    outcome, cause, message = judge(report(signal=9, outside_kills=1), LIMITS)
    assert (outcome, cause) == (Outcome.SANDBOX_ERROR, Cause.INFRA)
    assert "had no memory left" in message
    assert judge(report(signal=9, outside_kills=1, oom_kills=1), LIMITS)[1] is Cause.POLICY
    assert judge(report(Killed.WALL, signal=9, outside_kills=1), LIMITS)[1] is Cause.POLICY


def watch(**changes: object) -> Watch:
    settings = {"wall_s": 10.0, "cpu_s": 4.0, "memory_bytes": 1000, "sample_memory": True, "processors": 2} | changes
    return Watch(100.0, **settings)  # type: ignore[arg-type]


def test_what_a_program_waited_for_a_processor_is_not_charged_up_to_a_bound() -> None:
    starved = watch(wall_s=2.0)
    assert starved.late(102.5)
    assert starved.observe(102.5, Reading(0.1, starved_s=1.0)) == ""
    assert not starved.late(102.9)
    assert starved.wait_s(102.99) == pytest.approx(0.01)
    assert starved.observe(103.1, Reading(0.1, starved_s=1.0)) == "wall"
    hopeless = watch(wall_s=2.0)
    assert hopeless.observe(105.9, Reading(0.1, starved_s=50.0)) == ""
    assert hopeless.observe(106.1, Reading(0.1, starved_s=50.0)) == "wall"


def test_each_limit_is_met_exactly_at_its_value() -> None:
    assert watch().observe(109.99, Reading(3.99, 1000)) == ""
    assert watch().observe(110.0, Reading(0)) == "wall"
    assert watch().observe(101.0, Reading(4.0)) == "cpu"
    assert watch().observe(101.0, Reading(0, 1001)) == "memory"
    assert watch().observe(101.0, Reading(0, 0, oom_kills=1)) == "memory"
    assert watch().observe(101.0, Reading(0, 0, denied_forks=1)) == "processes"


def test_resident_memory_is_only_judged_where_no_group_guards_it() -> None:
    assert watch(sample_memory=False).observe(101.0, Reading(0, 5000)) == ""


def test_cpu_time_never_goes_backwards() -> None:
    watched = watch()
    watched.observe(101.0, Reading(2.0))
    watched.observe(102.0, Reading(1.0))
    assert watched.cpu_s == 2.0


def test_the_next_look_is_never_after_a_limit_could_be_met() -> None:
    assert watch().wait_s(100.0) == SAMPLE_S
    assert watch(sample_memory=False).wait_s(100.0) == TICK_S
    assert watch(sample_memory=False).wait_s(109.95) == pytest.approx(0.05)
    assert watch().wait_s(111.0) == 0
    nearly = watch(sample_memory=False)
    nearly.observe(101.0, Reading(3.96))
    assert nearly.wait_s(101.0) == pytest.approx(0.02)
