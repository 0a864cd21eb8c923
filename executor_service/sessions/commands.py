"""Commands beside a shell: each runs at once, in a worker of its own, and is judged as a program.

Invariants: no more of one session run at once than MAX_BESIDE, and none while the session is kept as it is; a command
holds a slot and a lease; when it has been answered its worker has ended. What it leaves running then goes on; at its
time limit, or when nobody waits any more, that is killed with it.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import fields, replace
from functools import lru_cache

from executor_service.cleanup import to_the_end
from executor_service.model import Cause, ExecutionResult, Limits, Outcome, RunRequest
from executor_service.programs.programs import no_user
from executor_service.runs.backends import Execution
from executor_service.sandbox.report import SandboxFailure
from executor_service.sessions.beside import KILLED
from executor_service.sessions.cell_run import CellRun, facts_of
from executor_service.sessions.interpreter import LAPSED, Death, Interpreter
from executor_service.sessions.interpreters import InterpreterTree
from executor_service.sessions.reasons import Ended
from executor_service.sessions.table import LiveSession, SessionTable
from fairbox.clock import Clock
from fairbox.errors import FieldError, FieldErrors

_EXIT_WITHIN_S = 5.0
"""Between the answer of a worker and its end, which takes milliseconds."""


@contextmanager
def turn_beside(session: LiveSession, request: RunRequest) -> Iterator[None]:
    """A command that waits for no other of its session. Raises SessionBusy and FieldErrors."""
    if not session.tree.sandbox.mounts:
        raise FieldErrors([FieldError("beside", "is true, must be false at isolation level landlock")])
    if request.user and not session.tree.image_id:
        raise FieldErrors([FieldError("user", "is set, must be empty: the session has no image")])
    session.enter_beside()
    try:
        yield
    finally:
        session.leave_beside()


async def perform_beside(
    attempt: Execution, session: LiveSession, table: SessionTable, clock: Clock
) -> ExecutionResult:
    """Runs a command to its end. Raises SessionNotFound if the session has ended, and FieldErrors for its user."""
    admitted, request, tree = clock.now(), attempt.request, session.tree
    limits = limits_of(request.limits, session.limits)
    tree.sandbox.hold_lease()
    try:
        async with _worker(tree, request) as member:
            await attempt.begin(lambda: tree.kill(member, LAPSED))
            async with CellRun(tree, member, request, limits, cell=0, grace_s=0, clock=clock) as run:
                setup_s = clock.now() - admitted
                end = await run.end("", attempt.observe)
    except SandboxFailure as failure:
        if tree.root.doom is not None:
            await asyncio.wait([tree.root.gone], timeout=_EXIT_WITHIN_S)
        table.find(request.session_id)  # what lacks may be the session
        if failure.stage == "user":
            raise no_user(request.user, f"session {request.session_id!r}", failure) from None
        if failure.stage == KILLED:
            killed = f"Killed as it began, by what runs in its session: {failure}."
            return attempt.result(Outcome.SIGNALED, Cause.POLICY, killed, exit_code=128 + 9, signal=9)
        return attempt.failed(failure)
    finally:
        tree.sandbox.drop_lease()
    kept = tree.root.gone.done() or tree.root.doom is not None
    return attempt.result(setup_time_s=setup_s, **facts_of(end, limits, kept=kept))


@asynccontextmanager
async def _worker(tree: InterpreterTree, request: RunRequest) -> AsyncIterator[Interpreter]:
    """A worker beside the shell, which has ended when the block is left."""
    member = await tree.start_beside(request.env, request.user)
    try:
        yield member
        await asyncio.wait([member.gone], timeout=_EXIT_WITHIN_S)
        if not member.gone.done():  # it alone: what the command has left running goes on
            tree.sandbox.orders.signal(signal.SIGKILL, member.pid)
            await tree.reaped([member])
    finally:
        if not member.gone.done():
            tree.kill(member, Death(Ended("was killed: its command was given up"), ours=True))
            await to_the_end(tree.reaped([member]))


@lru_cache(maxsize=256)
def limits_of(asked: Limits, session: Limits) -> Limits:
    """Limits that a cell names, else its session's; one that names a longer time may use the CPU for as long."""
    limits = replace(session, **{each.name: value for each in fields(Limits) if (value := getattr(asked, each.name))})
    if asked.wall_time_s > session.wall_time_s and not asked.cpu_time_s:
        return replace(limits, cpu_time_s=max(session.cpu_time_s, asked.wall_time_s))
    return limits
