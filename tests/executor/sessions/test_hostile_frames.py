"""Frames that programs write in place of what serves them: whatever they say, it is their own result and nobody's harm.

Cells and candidates of a real sandbox write to the socket that their interpreter is served over.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import textwrap
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from executor_service import (
    AssertCase,
    CannotBranch,
    Cause,
    ExecutorClient,
    FunctionCase,
    Limits,
    Outcome,
    Session,
    SessionNotFound,
    Verdict,
)
from tests.executor.levels import STRONGEST
from tests.executor.servers import Server, wait_for
from tests.executor.sessions.conftest import value

ONCE = pytest.mark.parametrize("level", STRONGEST, indirect=True, scope="session")
"""For what the server reads: the level has no part in that."""
OURS = (Outcome.SANDBOX_ERROR, Outcome.CANCELLED)
SAY = """
import os, struct, time

def say(head, data=b"", size=None):
    frame = memoryview(struct.pack("<IQ", len(head), len(data) if size is None else size) + head + data)
    while frame:
        frame = frame[os.write(240, frame):]
"""
WAIT = "while True: time.sleep(1)\n"
DEEP = "[" * 490 + "]" * 490
DONE = {"type": "done", "cell": 2, "exit_code": 0, "table": 0, "cpu_s": 0, "peak_bytes": 0, "resident_bytes": 0}


def frame(head: str, data: bytes = b"", size: int | None = None) -> str:
    """A call of `say`."""
    return f"say({head.encode()!r}, {data!r}, {size})\n"


def done(data: bytes = b"", **changes: object) -> str:
    """An answer to the cell; text that begins with `=` is JSON already."""
    facts = {name: json.dumps(fact) for name, fact in {**DONE, **changes}.items()}
    facts |= {name: fact[1:] for name, fact in changes.items() if isinstance(fact, str) and fact[0] == "="}
    return frame("{" + ", ".join(f'"{name}": {fact}' for name, fact in facts.items()) + "}", data)


def table(text: str) -> str:
    return done(text.encode(), table=len(text))


ANSWERS = {
    "no end to its CPU time": done(cpu_s=10**400),
    "infinite": done(cpu_s="=1e999"),
    "not a number": done(cpu_s="=NaN"),
    "more CPU time than there is": done(cpu_s=2**62),
    "a deep error": done(error=f"={DEEP}"),
    "a deep type": frame(f'{{"type": {DEEP}}}'),
    "text that is none": done(error="\ud800", exit_code=1),
    "wrong types": done(exit_code="0", peak_bytes=None, table="x"),
    "an unknown kind": frame('{"type": "verdict"}'),
    "no kind": frame("{}"),
    "another cell": done(cell=10**9),
    "no object": frame("[1, 2]"),
    "no JSON": frame("\ufffe" * 9),
    "a long head": done(error="x" * 2000),
    "a giant head": "say(b' ' * (4 << 20), b'', 0)\n",
    "a giant frame": frame("{}", b"", 160 << 20) + "say(b'', b'x' * (20 << 20), 0)\n",
    "a frame beyond all numbers": frame("{}", b"", 2**64 - 1),
    "more table than bytes": done(table=2**62),
    "a deep table": table(f'{{"displays": [[{{"a": {DEEP}}}, {DEEP}]]}}'),
    "a table of numbers": table(f'{{"displays": [[{{"a": {10**400}}}, 1]]}}'),
    "a wrong table": table('{"displays": [[["a"], 1]], "files": {"a": 1}}'),
    "files that nobody wants": table('{"files": [["' + "x" * 60_000 + '", 1]]}'),
    "many little frames": "while True: say(b'{}')\n",
    "an answer before its time": done(),
}


@pytest.fixture
async def session(executor: ExecutorClient) -> AsyncIterator[Session]:
    async with executor.session(limits=Limits(wall_time_s=20)) as made:
        await made.run(SAY + "x = 'kept'")
        yield made


@pytest.fixture
async def sibling(session: Session) -> AsyncIterator[Session]:
    (made,) = await session.branch(1)
    async with made:
        yield made


@ONCE
async def test_an_answer_is_at_worst_the_end_of_its_own_session(session: Session) -> None:
    """Each in a branch of its own."""
    siblings = await session.branch(len(ANSWERS))
    results = await asyncio.gather(
        *(sibling.run(said + WAIT) for sibling, said in zip(siblings, ANSWERS.values(), strict=True))
    )
    for name, result in zip(ANSWERS, results, strict=True):
        assert (result.cause, result.outcome in OURS) == (Cause.POLICY, False), (name, result)
        assert result.cpu_time_s <= 60, name
    for name, sibling in zip(ANSWERS, siblings, strict=True):
        if name in ("no kind", "no object", "no JSON"):
            with pytest.raises(SessionNotFound):
                await sibling.run("1")
    assert await value(session, "x") == "'kept'"
    await asyncio.gather(*(sibling.delete() for sibling in siblings))


SAID_BY_A_CANDIDATE = {
    "a deep error": frame(f'{{"type": "raised", "error": {DEEP}}}'),
    "a number for an error": frame('{"type": "raised", "error": 1}'),
    "text that is none": frame('{"type": "raised", "error": "\\ud800"}'),
    "a long error": frame('{"type": "raised", "error": "' + "x" * 5000 + '"}'),
    "a deep kind": frame(f'{{"type": {DEEP}}}'),
    "an unknown kind": frame('{"type": "verdict", "status": "passed"}', b"fine"),
    "no kind": frame("{}"),
    "no object": frame("7"),
    "a giant head": "say(b' ' * (4 << 20), b'', 0)\n",
    "a giant frame": frame("{}", b"", 160 << 20),
    "numbers without end": frame(f'{{"type": "loaded", "id": {10**400}}}'),
    "answers that are none": frame('{"type": "loaded"}') + frame('{"type": "answer", "id": 1, "ok": true}', b"{" * 900),
    "a deep answer": frame('{"type": "loaded"}') + frame('{"type": "answer", "id": 1, "ok": true}', DEEP.encode()),
    "an empty answer": frame('{"type": "loaded"}') + frame('{"type": "answer", "id": 1, "ok": true}'),
    "questions": frame('{"type": "loaded"}') + frame('{"type": "ask", "id": 1, "op": "call", "target": -1}', b"[]"),
}


@ONCE
@pytest.mark.parametrize("case", [FunctionCase((), 1), AssertCase("assert f() == 1")], ids=["function", "assert"])
async def test_what_a_candidate_says_is_its_own_failure(
    executor: ExecutorClient, case: FunctionCase | AssertCase
) -> None:
    entry = "f" if isinstance(case, FunctionCase) else ""

    async def judged(said: str) -> tuple[Verdict, Cause]:
        code = f"{SAY}\n{said}\n{WAIT}"
        [found] = (await executor.verify(code, [case], entry_point=entry, limits=Limits(wall_time_s=5))).cases
        return found.verdict, found.cause

    verdicts = await asyncio.gather(*map(judged, SAID_BY_A_CANDIDATE.values()))
    for name, (verdict, cause) in zip(SAID_BY_A_CANDIDATE, verdicts, strict=True):
        assert (cause, verdict in (Verdict.FAILED, Verdict.WRONG_ANSWER)) == (Cause.POLICY, True), name


FORKS = frame('{"type": "loaded", "forks": true}')
ANSWER = frame('{"type": "answer", "id": 1, "ok": true}', b"{}")
SAID_BY_FORKS = {
    "numbers beyond all": ANSWER
    + frame('{"type": "over", "clean": true, "peak_bytes": 1e300, "cpu_s": 1e300, "code": 1e300, "signal": -9e99}'),
    "texts for numbers": ANSWER + frame('{"type": "over", "clean": 1, "peak_bytes": "1", "cpu_s": null, "code": true}'),
    "no end": ANSWER,
    "an end alone": frame('{"type": "over", "clean": true}'),
    "another end": ANSWER + frame('{"type": "answer", "id": 1, "ok": true}', b"{}"),
    "ends that nobody waits for": ANSWER + frame('{"type": "over", "clean": true}') * 3,
    "another process, for ever": frame('{"type": "others"}') + frame('{"type": "over", "clean": true}'),
    "and again": (ANSWER + frame('{"type": "over", "clean": true}') + frame('{"type": "others"}')) * 9,
}


@ONCE
async def test_what_forks_of_a_candidate_say_is_its_own_failure(executor: ExecutorClient) -> None:
    async def judged(said: str) -> set[tuple[Verdict, Cause]]:
        code = f"{SAY}\n{FORKS}\n{said}\n{WAIT}"
        limits = Limits(wall_time_s=2)
        found = (await executor.verify(code, [FunctionCase((), 1)] * 16, entry_point="f", limits=limits)).cases
        assert all(case.execution and case.execution.peak_memory_bytes < 1 << 40 for case in found)
        return {(case.verdict, case.cause) for case in found}

    verdicts = await asyncio.gather(*map(judged, SAID_BY_FORKS.values()))
    for name, each in zip(SAID_BY_FORKS, verdicts, strict=True):
        assert each <= {(Verdict.FAILED, Cause.POLICY), (Verdict.WRONG_ANSWER, Cause.POLICY)}, name


SERVES = """
import sys
served = sys._getframe()
while type(served.f_locals.get("self")).__name__ != "Session":
    served = served.f_back
served = served.f_locals["self"]
ready = lambda **more: served._channel.send({"type": "ready", **more})
"""
"""`served` is what serves the cells, and `ready()` what a branch says when it begins."""
CLAIMS = ["2**31", "10**400", "-1", "1", "2", "'2'", "None", "[2]"]
"""Numbers of a process: none, all, the init's, its parent's."""


async def test_a_branch_does_not_choose_which_process_is_ended_for_it(session: Session, sibling: Session) -> None:
    await session.run(SERVES)
    branches: dict[str, Session] = {}
    for pid in CLAIMS:
        await session.run(f"served._tell_ready = lambda: ready(pid={pid})")
        with contextlib.suppress(CannotBranch):
            (branches[pid],) = await session.branch(1)

    async def ended(pid: str) -> None:
        """By the server, since it ignores the interrupt at its time limit."""
        deaf = "import signal; signal.signal(2, signal.SIG_IGN)\n" + WAIT
        result = await branches[pid].run(deaf, limits=Limits(wall_time_s=0.5))
        assert (result.outcome, result.cause) == (Outcome.TIME_LIMIT, Cause.POLICY), pid
        with pytest.raises(SessionNotFound):
            await branches[pid].run("1")
        for other in (session, sibling):
            assert await value(other, "x") == "'kept'", pid

    await asyncio.gather(*map(ended, branches))
    for other in (session, sibling):
        assert await value(other, "x") == "'kept'"


INSTEAD = {
    "its child": """
        def tell():
            if os.fork(): os.wait()
            ready(pid=os.getpid()); time.sleep(1000)
        served._tell_ready = tell""",
    "one that ends at once": "served._tell_ready = lambda: (ready(pid=os.getpid()), os._exit(0))",
    "its parent": """
        def branch(workspace):
            handles = served._channel.receive_handles(3)
            head = b'{"type": "ready", "pid": 9}'
            os.write(handles[0], struct.pack("<IQ", len(head), 0) + head)
            served._channel.send({"type": "forked"})
        served._branch = branch""",
}


async def test_what_begins_in_place_of_a_branch_harms_nobody_when_it_is_ended(executor: ExecutorClient) -> None:
    async def harmed(name: str) -> list[str]:
        async with executor.session(limits=Limits(wall_time_s=20)) as session:
            await session.run(SAY + "x = 'kept'")
            (sibling,) = await session.branch(1)
            async with sibling:
                await session.run(SERVES + textwrap.dedent(INSTEAD[name]))
                with contextlib.suppress(CannotBranch, SessionNotFound):
                    (branch,) = await session.branch(1)
                    await branch.delete()
                await asyncio.sleep(6)  # for longer than the server waits for the end of one that it has killed
                return [await value(other, "x") for other in (session, sibling)]

    found = await asyncio.gather(*map(harmed, INSTEAD))
    assert dict(zip(INSTEAD, found, strict=True)) == dict.fromkeys(INSTEAD, ["'kept'"] * 2)


FILLS = {
    "announced": frame("{}", b"", 160 << 20) + "say(b'', b'x' * (160 << 20), 0)\n",
    "begun": "say(b'{}', b'x' * ((16 << 20) - 100), 16 << 20)\n" + WAIT,
}


@ONCE
async def test_the_servers_memory_is_as_before_when_hostile_sessions_have_ended(
    executor: ExecutorClient, server: Server
) -> None:
    async def round_of(said: str) -> None:
        async def one() -> None:
            async with executor.session(limits=Limits(wall_time_s=1.5)) as session:
                result = await session.run(SAY + said)
                assert (result.cause, result.outcome in OURS) == (Cause.POLICY, False), result

        await asyncio.gather(*(one() for _ in range(8)))

    def resident_mib() -> int:
        return int(Path(f"/proc/{server.pid}/statm").read_text().split()[1]) * 4096 >> 20

    for said in FILLS.values():
        await round_of(said)
    before = resident_mib()
    for said in list(FILLS.values()) * 3:
        await round_of(said)
    await asyncio.to_thread(wait_for, lambda: resident_mib() <= before * 1.1)
