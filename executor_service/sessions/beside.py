"""Starts a worker beside a shell, in the same box, which runs one command.

Invariants: the init forks it, and it is confined as the shell is; nothing of a command is known to the init; every wait
for it has a deadline. What runs in the box can kill or stop it as soon as both have one user, so a worker that is not
heard of counts as killed by the code.
"""

from __future__ import annotations

import asyncio
import os
import resource
import signal
from collections.abc import Mapping, Sequence
from dataclasses import replace

from executor_service.guest.protocol import wire
from executor_service.guest.worker import GO
from executor_service.programs.plans import BESIDE, SHELL
from executor_service.sandbox.checkout import SandboxRun, WorkerSocket
from executor_service.sandbox.report import Plan, SandboxFailure
from executor_service.sandbox.streams import Streams
from executor_service.sessions.interpreter import Death, Interpreter, new_ends, place_of
from executor_service.sessions.table import MAX_BESIDE

KILLED = "beside"
"""Stage of the failure of one that ended, or was stopped, before its command: the code can have done it."""
_READY_WITHIN_S = 30.0
"""Forking and confining take milliseconds; beyond, the machine is overloaded."""

_LINGERING: list[Streams] = []
"""Streams of all boxes that commands which have ended may have left others with, the oldest first. One list for the
process, because its open files are what is bounded."""


def _most_lingering() -> int:
    """Two files each, so that they are a thirty-second of those that this process may open; a few in any case."""
    return min(max(16, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 64), 1024)


class Beside:
    """Workers beside the shell of one box. `plan` is that of the shell."""

    def __init__(self, sandbox: SandboxRun, plan: Plan) -> None:
        self._sandbox = sandbox
        self._plan = plan
        self._lingering: list[Streams] = []
        """Part of `_LINGERING`: streams of this box."""

    async def start(self, env: Mapping[str, str], user: str) -> Interpreter:
        """A worker that waits for its command; an empty `user` is that of the shell. SandboxFailure: there is none,
        with stage `user` if the image does not know that one, or KILLED."""
        return await _started(self._sandbox, self._plan, env, user)

    def doom(self, others: Sequence[Interpreter], death: Death) -> None:
        """The shell has ended, or is about to: commands beside it end with it. Branches of an interpreter live on."""
        for each in others if self._plan.entry == SHELL else ():
            each.doom = each.doom or replace(death, code=0, signal=signal.SIGKILL)

    def dispose(self, member: Interpreter) -> None:
        """Frees what one that has ended had. What a command has left running may go on writing."""
        member.channel.close()
        if self._plan.entry != SHELL:
            member.streams.close()
            return
        member.streams.linger()
        for lingering, most in ((self._lingering, MAX_BESIDE), (_LINGERING, _most_lingering())):
            lingering[:] = [each for each in (*lingering, member.streams) if not each.closed]
            for each in lingering[:-most]:
                each.close()

    def close(self) -> None:
        """Everything in the box is dead."""
        while self._lingering:
            self._lingering.pop().close()


async def _started(sandbox: SandboxRun, plan: Plan, env: Mapping[str, str], user: str) -> Interpreter:
    plan = replace(plan, entry=BESIDE, files=(), env={**plan.env, **env}, user=user or plan.user)
    (data, out, err), theirs = new_ends(sandbox.owner)
    sandbox.orders.start_beside(theirs)
    for handle in theirs:
        os.close(handle)
    socket, streams = WorkerSocket(data, plan), Streams(out, err, plan.limits.output_bytes, lambda: None)
    channel = socket.channel(wire.MAX_ANSWER, wire.MAX_HEAD, asks_sender=True)
    streams.listen()
    gone: asyncio.Future[Death] = asyncio.get_running_loop().create_future()
    member = Interpreter("", channel, streams, False, gone)
    try:
        async with asyncio.timeout(_READY_WITHIN_S):
            await socket.send(GO)
            frame = await channel.receive()
        if frame is None or frame[0].get("type") != "ready":
            head = frame[0] if frame is not None else {}
            stage, reason = head.get("stage") or KILLED, head.get("reason") or "it ended without a word"
            raise SandboxFailure(str(stage), 0, str(reason), started=False)
        member.process = channel.sender
        if not (pid := place_of(channel.sender)[1]):
            raise SandboxFailure(KILLED, 0, "it ended as it began", started=False)
        member.pid = pid
    except BaseException as error:
        channel.close()  # it ends with it
        streams.close()
        if isinstance(error, TimeoutError):
            late = f"not ready after {_READY_WITHIN_S:g} s"
            raise SandboxFailure(KILLED, 0, late, started=False) from None
        raise
    finally:
        socket.close()
    return member
