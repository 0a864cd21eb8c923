"""One box in which interpreters of sessions live: a root, and what was branched from it.

Invariants: each interpreter ends once, and `gone` says why; the box ends with its last interpreter; what is said from
inside is a claim of untrusted code, and every wait for it has a deadline.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from types import TracebackType
from typing import Any

from executor_service.cleanup import to_the_end
from executor_service.guest.protocol.wire import MAX_ANSWER
from executor_service.guest.serve.branch import COPY
from executor_service.guest.walls.workspace import BRANCHES
from executor_service.model import Cause, Limits, OutputFile
from executor_service.sandbox.channel import Channel
from executor_service.sandbox.checkout import SandboxRun
from executor_service.sandbox.pool import SandboxPool
from executor_service.sandbox.report import Killed, Plan, SandboxFailure
from executor_service.sandbox.streams import Streams
from executor_service.sessions.interpreter import FLOODED, LAPSED, MAX_REASON, Death, Interpreter, new_ends, place_of
from executor_service.sessions.reasons import Ended
from fairbox.errors import FieldError, FieldErrors

_ANSWER_WITHIN_S = 30.0
"""Being ready, or forked, takes milliseconds; beyond, the machine is overloaded, or the code does not play along."""
_DEATH_WITHIN_S = 10.0
"""Between a SIGKILL that the init is asked for and its effect, seconds on a machine that has far too much to do;
beyond, the whole box is ended."""
_SHORT_S = 0.003
"""A cell that is over sooner has used no CPU time that mattered."""
_REST_AFTER_S = 0.05
"""Cells often follow each other closely; the init need not hear of each pause."""
_VERDICT_WITHIN_S = 0.5
"""Between the death of a process and the finding that it was killed for memory: the init looks every 0.1 s."""
_BY_INIT = {
    "memory": "was killed for its memory limit",
    "cpu": "was killed for the CPU time limit of a cell",
    "processes": "was killed for its process limit",
    "wall": "was killed for its time limit",
}


class NotBranchable(Exception):  # noqa: N818 - a state of a session
    """The session can't be forked now; the text says why."""


class InterpreterTree:
    """`async with Family(boxes, plan, session_id, output_bytes) as family: family.root ...`. SandboxFailure on entering
    when there is no box."""

    def __init__(self, boxes: SandboxPool, plan: Plan, session_id: str) -> None:
        self._boxes = boxes
        self._plan = plan
        self._session_id = session_id
        self._stack = AsyncExitStack()
        self._sandbox: SandboxRun | None = None
        self._members: list[Interpreter] = []
        self._branches: list[Interpreter] = []
        self._cells: dict[Interpreter, float] = {}
        """CPU seconds of the cells that run."""
        self._counting = False
        """Whether the init counts CPU time against a limit."""
        self._to_count: dict[Interpreter, asyncio.TimerHandle] = {}
        """When it begins to, for cells that are not over by then."""
        self._to_rest: asyncio.TimerHandle | None = None
        self._layers: dict[int, asyncio.Future[int]] = {}
        """Layers that were asked for, until they are there or have failed with an error number."""
        self._layers_made = 0
        self._events: asyncio.Task[None] | None = None
        self._deadline: asyncio.Timeout | None = None
        self._asked: dict[int, asyncio.Future[float]] = {}
        """Who was asked about, by number inside -> the answer."""
        self._init = 0
        """By its number here; 0: not known."""
        self.root: Interpreter

    async def __aenter__(self) -> InterpreterTree:
        try:
            await self._open()
        except BaseException:
            await to_the_end(self._close())
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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

    def begin(self, member: Interpreter, limits: Limits) -> None:
        """A cell begins. The CPU time of cells that run at once is counted together."""
        self._cells[member] = limits.cpu_time_s
        if self._counting:
            self._count(member)
        else:
            # The init need not be woken for a cell that ends before it could have met a limit.
            self._to_count[member] = asyncio.get_running_loop().call_later(_SHORT_S, self._count, member)

    def _count(self, member: Interpreter) -> None:
        """From here on the init counts CPU time."""
        self._forget_to_count(member)
        if member in self._cells and self._sandbox is not None:
            self._counting = True
            limits = replace(self._plan.limits, cpu_time_s=sum(self._cells.values()))
            self._sandbox.allow(limits, member.pid)

    async def starved_s(self, member: Interpreter, within_s: float) -> float:
        """Seconds that its cell has waited for a processor so far; 0 if the init does not say it within that time."""
        number = member.pid
        answer = self._asked[number] = asyncio.get_running_loop().create_future()
        try:
            self.sandbox.ask_starved(number)
            waiting: set[asyncio.Future[Any]] = {answer, member.gone}
            await asyncio.wait(waiting, timeout=within_s, return_when=asyncio.FIRST_COMPLETED)
            return answer.result() if answer.done() else 0.0
        finally:
            del self._asked[number]

    def rest(self, member: Interpreter) -> None:
        """Its cell has ended, and its output was taken."""
        self._cells.pop(member, None)
        self._forget_to_count(member)
        if member.gone.done():
            self._dispose(member)
        if not self._cells and self._counting and self._to_rest is None:
            self._to_rest = asyncio.get_running_loop().call_later(_REST_AFTER_S, self._rest)

    def _forget_to_count(self, member: Interpreter) -> None:
        if waiting := self._to_count.pop(member, None):
            waiting.cancel()

    def _rest(self) -> None:
        self._to_rest = None
        if not self._cells and self._members and self._counting:
            self._counting = False
            self.sandbox.rest()

    def interrupt(self, member: Interpreter, *, group: bool) -> None:
        """As Ctrl-C: to the interpreter alone, or to its process group, with the programs that it waits for."""
        self.sandbox.signal(signal.SIGINT, member.pid, "group" if group else "process")

    def kill(self, member: Interpreter, death: Death) -> None:
        """Ends an interpreter and the processes below it; the first reason stays. `gone` says when."""
        if member.gone.done() or member.doom is not None:
            return
        member.doom = death
        if all(each.doom is not None for each in self._members):
            self.end()
            return
        self.sandbox.signal(signal.SIGKILL, member.pid, "tree")
        asyncio.get_running_loop().call_later(_DEATH_WITHIN_S, self._end_if_alive, member)

    def end(self) -> None:
        """Ends everything in the box, the interpreters for which no reason was given too."""
        if self._events is not None and not self._events.done():
            self.sandbox.end()
            if self._deadline is not None:
                self._deadline.reschedule(asyncio.get_running_loop().time() + _DEATH_WITHIN_S)

    async def branch(self, parent: Interpreter, session_ids: Sequence[str]) -> list[Interpreter]:
        """Forks `parent`, whose turn the caller has, once for each id: all or none. CannotBranch says why not."""
        made: list[Interpreter] = []
        most = self._plan.limits.processes
        # One more for the process that forks it. A fork that the kernel denies would end the whole family.
        if len(self._members) + len(session_ids) + 1 > most:
            reason = f"the limit of {most} processes is for its whole family, which would have more"
            raise NotBranchable(f"session {parent.session_id!r} can't branch: {reason}")
        try:
            for session_id in session_ids:
                made.append(await self._branch_one(parent, session_id))  # noqa: PERF401 - what was made is kept
        except BaseException:
            for each in made:
                self.kill(each, Death(Ended("was one of several branches of which not all could be made"), ours=True))
            await to_the_end(self._reaped(made))
            raise
        return made

    async def _reaped(self, members: Sequence[Interpreter]) -> None:
        """Until then the kernel counts them as processes of the family: the next branch could be denied for them."""
        if members:
            await asyncio.wait([member.gone for member in members], timeout=_DEATH_WITHIN_S)

    def hold_lease(self) -> None:
        """A cell is to run under a lease: if that lapses, the init kills the whole family, should the server not do it.
        Until `drop_lease()`, or the end of the family."""
        self.sandbox.hold_lease()

    def drop_lease(self) -> None:
        """A cell is over."""
        self.sandbox.drop_lease()

    @property
    def sandbox(self) -> SandboxRun:
        assert self._sandbox is not None
        return self._sandbox

    async def _open(self) -> None:
        self._sandbox = await self._stack.enter_async_context(self._boxes.take(self._plan))
        channel = await self._sandbox.serve(MAX_ANSWER, asks_sender=True)
        gone: asyncio.Future[Death] = asyncio.get_running_loop().create_future()
        self.root = self._member(Interpreter(self._session_id, channel, self._sandbox.streams, True, gone))
        self._events = asyncio.create_task(self._follow(), name=f"session {self._session_id}")
        frame = await self.root.expect(_ANSWER_WITHIN_S)
        if frame is None or frame[0].get("type") != "ready":
            raise await self._not_ready()
        self.root.process = channel.sender
        self._init = place_of(channel.sender)[0]
        self.sandbox.rest()

    async def _not_ready(self) -> Exception:
        """Why there is no interpreter. Where its memory does not suffice, that is the fault of who chose it."""
        await asyncio.wait([self.root.gone], timeout=_DEATH_WITHIN_S)
        reason = "its interpreter is silent"
        if self.root.gone.done():
            if self.root.gone.result().killed is Killed.MEMORY:
                problem = f"is {self._plan.limits.memory_bytes}, and an interpreter that has run nothing needs more"
                return FieldErrors([FieldError("limits.memory_bytes", problem)])
            reason = f"its interpreter did not start: it {self.root.gone.result().why.reason}"
        return SandboxFailure("session", 0, reason, started=False)

    def _member(self, member: Interpreter) -> Interpreter:
        member.streams.on_flood = lambda: self.kill(member, FLOODED)
        self._members.append(member)
        return member

    def _is_ready(self, member: Interpreter, head: dict[str, Any]) -> bool:
        """Whether a branch has begun: a process that lives, is nobody else's interpreter, and whose end the init will
        tell. Which one it is says the kernel, not the code: signals that are meant for it must reach nobody else."""
        process = member.channel.sender
        parent, pid = place_of(process)
        known = {each.process for each in self._members}
        if head.get("type") != "ready" or not parent or parent != self._init or process in known:
            return False
        member.process, member.pid = process, pid
        return True

    async def _workspace(self, parent: Interpreter) -> tuple[int, str]:
        """The layer of a coming branch, and where it finds its workspace; empty: there is none. CannotBranch."""
        if self._plan.workspace is None:
            return 0, ""
        if not self.sandbox.mounts:
            return 0, COPY
        self._layers_made += 1
        number = self._layers_made
        made = self._layers[number] = asyncio.get_running_loop().create_future()
        self.sandbox.layer(number, parent.layer)
        try:
            await asyncio.wait([made, parent.gone], timeout=_ANSWER_WITHIN_S, return_when=asyncio.FIRST_COMPLETED)
        finally:
            del self._layers[number]
        if not made.done() or made.result():
            why = os.strerror(made.result()) if made.done() else "nothing is heard of it"
            reason = f"what it wrote to its workspace can't be copied: {why}"
            raise NotBranchable(f"session {parent.session_id!r} can't branch: {reason}")
        return number, f"{BRANCHES}/{number}"

    async def _branch_one(self, parent: Interpreter, session_id: str) -> Interpreter:
        layer, workspace = await self._workspace(parent)
        (data, out, err), theirs = new_ends(self.sandbox.owner)
        gone: asyncio.Future[Death] = asyncio.get_running_loop().create_future()
        streams = Streams(out, err, self._plan.limits.output_bytes, lambda: None)
        streams.listen()
        channel = Channel(socket.socket(fileno=data), MAX_ANSWER, asks_sender=True)
        member = Interpreter(session_id, channel, streams, False, gone, layer=layer)
        self._branches.append(member)
        try:
            order = {"type": "branch", "workspace": workspace}
            await parent.channel.send(order, handles=theirs, within_s=_ANSWER_WITHIN_S)
        except (OSError, TimeoutError):
            pass  # it has ended, or is silent: seen below
        finally:
            for handle in theirs:
                os.close(handle)
        if reason := await self._refusal(parent, member):
            self._dispose(member)  # where there is a branch that nobody wants, it ends with its channel
            raise NotBranchable(f"session {parent.session_id!r} can't branch: {reason}")
        return self._member(member)

    async def _refusal(self, parent: Interpreter, member: Interpreter) -> str:
        """Why there is no branch, as parent and branch say; empty: it is ready."""
        frame = await parent.expect(_ANSWER_WITHIN_S)
        if frame is None or frame[0].get("type") not in ("forked", "refused"):
            silent = Ended("was killed: it did not answer when it was to be branched", Cause.POLICY)
            self.kill(parent, Death(silent, Killed.WALL))
            return "its interpreter did not answer"
        if frame[0]["type"] == "forked":
            frame = await member.expect(_ANSWER_WITHIN_S)
            if frame is None:
                return "the branch ended as it began"
            if self._is_ready(member, frame[0]):
                return ""
        return str(frame[0].get("reason") or "it says no reason")[:MAX_REASON]

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
                made = self._layers.get(event["number"])
                if made is not None and not made.done():
                    made.set_result(event["errno"])
            case "ended":
                reason = event["reason"]
                why = Ended(_BY_INIT.get(reason, "was ended with its family"), Cause.POLICY)
                limit = Killed(reason) if reason in _BY_INIT else Killed.NOT
                death = Death(why, limit, 0, signal.SIGKILL, ours=not limit, facts=event)
                if reason == Killed.LAPSED:
                    death = replace(LAPSED, facts=event)
                for member in tuple(self._members):
                    self._gone(member, death)
            case "starved":
                answer = self._asked.get(event["pid"])
                if answer is not None and not answer.done():
                    answer.set_result(event["seconds"])
            case "failed":
                why = Ended(f"was lost: {event['stage']}: {event['error']}")
                for member in tuple(self._members):
                    self._gone(member, Death(why, ours=True, failed=True))

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
        if not self._members:
            self.end()
        if not member.gone.done():
            doom = member.doom
            member.gone.set_result(replace(doom, facts=death.facts) if doom else death)
        if member not in self._cells:
            self._dispose(member)

    def _dispose(self, member: Interpreter) -> None:
        """Frees what a branch had; what the root has goes with the box."""
        if member in self._branches:
            self._branches.remove(member)
            member.channel.close()
            member.streams.close()

    def _end_if_alive(self, member: Interpreter) -> None:
        if not member.gone.done():
            self.end()

    async def _close(self) -> None:
        if self._events is not None:
            self.end()
            await asyncio.wait([self._events])
            self._events.result()
        await self._stack.aclose()
        for member in tuple(self._branches):
            self._dispose(member)
