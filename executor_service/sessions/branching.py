"""Branching: an interpreter forks itself, and the copy gets streams and a workspace of its own.

Invariants: a branch is a process that the kernel says is a child of the box's init and nobody else's interpreter; one
that is refused is closed, and ends with its channel; every wait for untrusted code has a deadline.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from typing import Any

from executor_service.errors import CannotBranch
from executor_service.guest.protocol.wire import MAX_ANSWER
from executor_service.guest.serve.branch import COPY
from executor_service.guest.walls.workspace import BRANCHES
from executor_service.model import Cause
from executor_service.sandbox.channel import Channel
from executor_service.sandbox.checkout import SandboxRun
from executor_service.sandbox.report import Killed, Plan
from executor_service.sandbox.streams import Streams
from executor_service.sessions.interpreter import MAX_REASON, Death, Interpreter, new_ends, place_of
from executor_service.sessions.reasons import Ended

_ANSWER_WITHIN_S = 30.0
"""Forking takes milliseconds; beyond, the machine is overloaded, or the code does not play along."""


class Branching:
    """Makes the branches of one box. `init`: its number here. `kill` ends an interpreter that does not answer;
    `is_known` says whether a process is an interpreter already."""

    def __init__(
        self,
        sandbox: SandboxRun,
        plan: Plan,
        init: int,
        kill: Callable[[Interpreter, Death], None],
        is_known: Callable[[int], bool],
    ) -> None:
        self._sandbox = sandbox
        self._plan = plan
        self._init = init
        self._kill = kill
        self._is_known = is_known
        self._layers: dict[int, asyncio.Future[int]] = {}
        """Layers that were asked for, until they are there or have failed with an error number."""
        self._layers_made = 0

    async def fork(self, parent: Interpreter, session_id: str) -> Interpreter:
        """Forks `parent`, whose turn the caller has, once. Raises CannotBranch with the reason why not."""
        layer, workspace = await self._workspace(parent)
        (data, out, err), theirs = new_ends(self._sandbox.owner)
        gone: asyncio.Future[Death] = asyncio.get_running_loop().create_future()
        streams = Streams(out, err, self._plan.limits.output_bytes, lambda: None)
        streams.listen()
        channel = Channel(socket.socket(fileno=data), MAX_ANSWER, asks_sender=True)
        member = Interpreter(session_id, channel, streams, False, gone, layer=layer)
        try:
            await self._ask(parent, workspace, theirs)
            if reason := await self._refusal(parent, member):
                raise CannotBranch(f"session {parent.session_id!r} can't branch: {reason}")
        except BaseException:
            channel.close()  # a branch that nobody wants ends with it
            streams.close()
            raise
        return member

    def on_layered(self, number: int, error: int) -> None:
        """The init has made a layer, or failed with an error number."""
        made = self._layers.get(number)
        if made is not None and not made.done():
            made.set_result(error)

    async def _workspace(self, parent: Interpreter) -> tuple[int, str]:
        """The layer of a coming branch, and the place at which it finds its workspace; empty: there is none."""
        if self._plan.workspace is None:
            return 0, ""
        if not self._sandbox.mounts:
            return 0, COPY
        self._layers_made += 1
        number = self._layers_made
        made = self._layers[number] = asyncio.get_running_loop().create_future()
        self._sandbox.orders.layer(number, parent.layer)
        try:
            await asyncio.wait([made, parent.gone], timeout=_ANSWER_WITHIN_S, return_when=asyncio.FIRST_COMPLETED)
        finally:
            del self._layers[number]
        if not made.done() or made.result():
            why = os.strerror(made.result()) if made.done() else "nothing is heard of it"
            reason = f"what it wrote to its workspace can't be copied: {why}"
            raise CannotBranch(f"session {parent.session_id!r} can't branch: {reason}")
        return number, f"{BRANCHES}/{number}"

    async def _ask(self, parent: Interpreter, workspace: str, ends: list[int]) -> None:
        """Sends the order with the branch's ends, which are closed here."""
        try:
            order = {"type": "branch", "workspace": workspace}
            await parent.channel.send(order, handles=ends, within_s=_ANSWER_WITHIN_S)
        except (OSError, TimeoutError):
            pass  # it has ended, or is silent: `_refusal` sees that
        finally:
            for handle in ends:
                os.close(handle)

    async def _refusal(self, parent: Interpreter, member: Interpreter) -> str:
        """The reason why there is no branch, as parent and branch say; empty: it is ready."""
        frame = await parent.expect(_ANSWER_WITHIN_S)
        if frame is None or frame[0].get("type") not in ("forked", "refused"):
            silent = Ended("was killed: it did not answer when it was to be branched", Cause.POLICY)
            self._kill(parent, Death(silent, Killed.WALL))
            return "its interpreter did not answer"
        if frame[0]["type"] == "forked":
            frame = await member.expect(_ANSWER_WITHIN_S)
            if frame is None:
                return "the branch ended as it began"
            if self._is_ready(member, frame[0]):
                return ""
        return str(frame[0].get("reason") or "it says no reason")[:MAX_REASON]

    def _is_ready(self, member: Interpreter, head: dict[str, Any]) -> bool:
        """Says whether a branch has begun: a live process that is nobody else's interpreter and whose end the init will
        report. The kernel says which one it is, not the code: signals for it must reach nobody else."""
        process = member.channel.sender
        parent, pid = place_of(process)
        if head.get("type") != "ready" or not parent or parent != self._init or self._is_known(process):
            return False
        member.process, member.pid = process, pid
        return True
