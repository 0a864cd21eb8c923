"""One box in which interpreters of sessions live: a root, and what was branched from it.

Invariants: each interpreter ends once, and `gone` says why; the box ends with its last interpreter; what is said from
inside is a claim of untrusted code, and every wait for it has a deadline.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

from executor_service.cleanup import to_the_end
from executor_service.errors import CannotBranch
from executor_service.guest.protocol.wire import MAX_ANSWER
from executor_service.model import Cause, Limits, OutputFile
from executor_service.sandbox.checkout import SandboxRun
from executor_service.sandbox.pool import SandboxPool
from executor_service.sandbox.report import Killed, Plan, SandboxFailure
from executor_service.sessions.beside import KILLED, Beside
from executor_service.sessions.branching import Branching
from executor_service.sessions.cell_time import CellTime
from executor_service.sessions.interpreter import FLOODED, LAPSED, Death, Interpreter, place_of
from executor_service.sessions.questions import Questions
from executor_service.sessions.reasons import Ended
from fairbox.errors import FieldError, FieldErrors

_ANSWER_WITHIN_S = 30.0
"""Being ready takes milliseconds; beyond, the machine is overloaded."""
_DEATH_WITHIN_S = 10.0
"""Between a SIGKILL that the init is asked for and its effect, seconds on a machine that has far too much to do;
beyond, the whole box is ended."""
_VERDICT_WITHIN_S = 0.5
"""Between the death of a process and the finding that it was killed for memory: the init looks every 0.1 s."""
_BY_INIT = {
    "memory": "was killed for its memory limit",
    "cpu": "was killed for the CPU time limit of a cell",
    "processes": "was killed for its process limit",
    "wall": "was killed for its time limit",
}


class InterpreterTree:
    """`async with InterpreterTree(boxes, plan, session_id) as tree: tree.root ...`. Entering raises SandboxFailure if
    there is no box."""

    def __init__(self, boxes: SandboxPool, plan: Plan, session_id: str) -> None:
        self._boxes = boxes
        self._plan = plan
        self._session_id = session_id
        self._stack = AsyncExitStack()
        self._sandbox: SandboxRun | None = None
        self._members: list[Interpreter] = []
        self._branches: list[Interpreter] = []
        self._events: asyncio.Task[None] | None = None
        self._deadline: asyncio.Timeout | None = None
        self._cell_time: CellTime
        self._branching: Branching
        self._beside: Beside
        self.questions: Questions
        self.root: Interpreter

    async def __aenter__(self) -> InterpreterTree:
        try:
            await self._open()
        except BaseException:
            await to_the_end(self._close())
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await to_the_end(self._close())

    async def returned(self) -> tuple[OutputFile, ...]:
        """Ends everything in the box, and returns the files that its plan wants returned. SandboxFailure."""
        self.end()
        await self.over()
        if self.sandbox.files is None:
            raise SandboxFailure("files", 0, "their reader ended without a word", started=True)
        return self.sandbox.files

    async def over(self) -> None:
        """Returns when the last interpreter has ended and everything in the box is dead."""
        assert self._events is not None
        await asyncio.wait([self._events])

    @property
    def image_id(self) -> str:
        """Id of the image that is its root; empty: none."""
        return self._plan.image.image_id if self._plan.image is not None else ""

    def begin(self, member: Interpreter, limits: Limits) -> None:
        """A cell begins. The CPU time of cells that run at once is counted together."""
        self._cell_time.begin(member, limits)

    def rest(self, member: Interpreter) -> None:
        """Its cell has ended, and its output was taken."""
        self._cell_time.end(member)
        if member.gone.done():
            self._dispose(member)

    def interrupt(self, member: Interpreter, *, group: bool) -> None:
        """As Ctrl-C: to the interpreter alone, or to its process group, with the programs that it waits for."""
        self.sandbox.orders.signal(signal.SIGINT, member.pid, "group" if group else "process")

    def kill(self, member: Interpreter, death: Death) -> None:
        """Ends an interpreter and the processes below it; the first reason stays. `gone` says when."""
        if member.gone.done() or member.doom is not None:
            return
        member.doom = death
        if member.is_root:
            self._beside.doom(self._members, death)
        if all(each.doom is not None for each in self._members):
            self.end()
            return
        self.sandbox.orders.signal(signal.SIGKILL, member.pid, "tree")
        asyncio.get_running_loop().call_later(_DEATH_WITHIN_S, self._end_if_alive, member)

    def end(self) -> None:
        """Ends everything in the box, the interpreters for which no reason was given too."""
        if self._events is not None and not self._events.done():
            self.sandbox.orders.end()
            if self._deadline is not None:
                self._deadline.reschedule(asyncio.get_running_loop().time() + _DEATH_WITHIN_S)

    async def branch(self, parent: Interpreter, session_ids: Sequence[str]) -> list[Interpreter]:
        """Forks `parent`, whose turn the caller has, once for each id: all or none. CannotBranch says why not."""
        made: list[Interpreter] = []
        most = self._plan.limits.processes
        # One more for the process that forks it. A fork that the kernel denies would end the whole tree.
        if len(self._members) + len(session_ids) + 1 > most:
            reason = f"it shares a limit of {most} processes with its branches, and this would exceed it"
            raise CannotBranch(f"session {parent.session_id!r} can't branch: {reason}")
        try:
            for session_id in session_ids:
                member = self._member(await self._branching.fork(parent, session_id))
                self._branches.append(member)
                made.append(member)
        except BaseException:
            for each in made:
                self.kill(each, Death(Ended("was one of several branches of which not all could be made"), ours=True))
            await to_the_end(self.reaped(made))
            raise
        return made

    async def start_beside(self, env: Mapping[str, str], user: str) -> Interpreter:
        """An interpreter beside a shell, which takes one command and then ends. Raises as `Beside.start`."""
        member = await self._beside.start(env, user)
        if self.root.doom is not None or self.root.gone.done():
            self._beside.dispose(member)
            raise SandboxFailure(KILLED, 0, "its session has ended", started=False)
        self._branches.append(self._member(member))
        return member

    async def reaped(self, members: Sequence[Interpreter]) -> None:
        """Waits for their deaths. Until then the kernel counts them as processes of the tree, and could deny the next
        branch for them."""
        if members:
            await asyncio.wait([member.gone for member in members], timeout=_DEATH_WITHIN_S)

    @property
    def sandbox(self) -> SandboxRun:
        assert self._sandbox is not None
        return self._sandbox

    async def _open(self) -> None:
        self._sandbox = await self._stack.enter_async_context(self._boxes.take(self._plan))
        self.questions = Questions(self._sandbox.orders)
        self._cell_time = CellTime(self._sandbox.orders, self._plan.limits)
        self._beside = Beside(self._sandbox, self._plan)
        channel = await self._sandbox.serve(MAX_ANSWER, asks_sender=True)
        gone: asyncio.Future[Death] = asyncio.get_running_loop().create_future()
        self.root = self._member(Interpreter(self._session_id, channel, self._sandbox.streams, True, gone))
        self._events = asyncio.create_task(self._follow(), name=f"session {self._session_id}")
        frame = await self.root.expect(_ANSWER_WITHIN_S)
        if frame is None or frame[0].get("type") != "ready":
            if frame is not None and frame[0].get("type") == "lacking":
                raise SandboxFailure("exec", 0, str(frame[0].get("reason")), started=False)
            raise await self._not_ready()
        self.root.process = channel.sender
        init = place_of(channel.sender)[0]
        self._branching = Branching(self._sandbox, self._plan, init, self.kill, self._is_known)
        self.sandbox.orders.rest()

    async def _not_ready(self) -> Exception:
        """Why there is no interpreter. Where its memory does not suffice, that is the fault of who chose it."""
        await asyncio.wait([self.root.gone], timeout=_DEATH_WITHIN_S)
        reason = "its interpreter is silent"
        if self.root.gone.done():
            if self.root.gone.result().killed is Killed.MEMORY:
                problem = f"is {self._plan.limits.memory_bytes}, and an interpreter that has run nothing needs more"
                return FieldErrors([FieldError("limits.memory_bytes", problem)])
            if (facts := self.root.gone.result().facts).get("stage") == "user":
                return SandboxFailure("user", 0, facts["error"], started=False)
            reason = f"its interpreter did not start: it {self.root.gone.result().why.reason}"
        return SandboxFailure("session", 0, reason, started=False)

    def _member(self, member: Interpreter) -> Interpreter:
        member.streams.on_flood = lambda: self.kill(member, FLOODED)
        self._members.append(member)
        return member

    def _is_known(self, process: int) -> bool:
        return any(each.process == process for each in self._members)

    async def _follow(self) -> None:
        """Takes in what happens in the box until everything in it is dead."""
        death = Death(Ended("ended with its server"), ours=True)
        try:
            async with asyncio.timeout(None) as self._deadline:
                while (event := await self.sandbox.event()) is not None and event["type"] != "dead":
                    self._heard(event)
            if event is None:
                death = Death(Ended("was lost: its sandbox failed"), ours=True, failed=True)
        except TimeoutError:
            pass  # what starves the init can be the code; whoever asked for the end has said why
        finally:
            self._deadline = None
            for member in tuple(self._members):
                self._gone(member, death)

    def _heard(self, event: dict[str, Any]) -> None:
        match event["type"]:
            case "exited":
                for member in tuple(self._members):
                    if member.is_root if event["main"] else member.pid == event["pid"]:
                        self._exited(member, event["code"], event["signal"])
            case "layered":
                self._branching.on_layered(event["number"], event["errno"])
            case "ended":
                reason = event["reason"]
                why = Ended(_BY_INIT.get(reason, "was ended together with its branches"), Cause.POLICY)
                limit = Killed(reason) if reason in _BY_INIT else Killed.NOT
                death = Death(why, limit, 0, signal.SIGKILL, ours=not limit, facts=event)
                if reason == Killed.LAPSED:
                    death = replace(LAPSED, facts=event)
                for member in tuple(self._members):
                    self._gone(member, death)
            case "starved" | "writable" | "kept":
                self.questions.heard(event)
            case "failed":
                why = Ended(f"was lost: {event['stage']}: {event['error']}")
                for member in tuple(self._members):
                    self._gone(member, Death(why, ours=True, failed=True, facts=event))

    def _exited(self, member: Interpreter, code: int, number: int) -> None:
        how = f"was ended by signal {number}" if number else f"exited with code {code}"
        death = Death(Ended(f"ended: its interpreter {how}", Cause.POLICY), Killed.NOT, code, number)
        if number == signal.SIGKILL and member.doom is None:
            # Where the kernel killed it for memory, the init says so next.
            asyncio.get_running_loop().call_later(_VERDICT_WITHIN_S, self._gone, member, death)
        else:
            self._gone(member, death)

    def _gone(self, member: Interpreter, death: Death) -> None:
        """Idempotent."""
        if member not in self._members:
            return
        self._members.remove(member)
        if member.is_root:
            self._beside.doom(self._members, death)
        if all(each.doom is not None for each in self._members):
            self.end()
        if not member.gone.done():
            doom = member.doom
            member.gone.set_result(replace(doom, facts=death.facts) if doom else death)
        if member not in self._cell_time:
            self._dispose(member)

    def _dispose(self, member: Interpreter) -> None:
        """Frees what a branch had; what the root has goes with the box."""
        if member in self._branches:
            self._branches.remove(member)
            self._beside.dispose(member)

    def _end_if_alive(self, member: Interpreter) -> None:
        if not member.gone.done():
            self.end()

    async def _close(self) -> None:
        if self._events is not None:
            self.end()
            await asyncio.wait([self._events])
            self._events.result()
            self._cell_time.close()
        await self._stack.aclose()
        for member in tuple(self._branches):
            self._dispose(member)
        if self._sandbox is not None:
            self._beside.close()
