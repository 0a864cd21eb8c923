"""One use of a box, as its init sees it: limits in, orders of the server and deaths of processes in, endings out."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import struct
import time

from executor_service.guest.children import Children
from executor_service.guest.walls import private
from executor_service.guest.walls.files import reader_of
from executor_service.guest.walls.signals import send_signal
from executor_service.guest.watch import RESTING_S, Reading, Watch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from executor_service.guest.image_root import ImageRoot
    from executor_service.guest.lease import LeaseDeadline
    from executor_service.guest.meters import Meters
    from executor_service.guest.protocol.spec import Begin, WorkspaceOrder
    from executor_service.guest.protocol.status_page import StatusPages
    from executor_service.guest.walls.call_relay import CallRelay
    from executor_service.guest.walls.without_namespaces import BareInit
    from executor_service.guest.walls.workspace import WorkspaceMounts

_MAX_MESSAGE = 64 << 10
_HANDLES = struct.Struct("=3i")
"""Descriptors that come with an order, if any do."""
_AT_ONCE = socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC
_IDLE_S = 3600.0
_NO_PRIORITY = os.sched_param(0)
_LATE_S = 0.01
"""By how much a program's own word on its CPU time may exceed what the kernel has counted so far."""
_START_S = 0.02
"""Between two looks whether a program that may start has started."""
_MUCH = 16 << 20
"""Bytes by which memory has to change to be told: most sessions never hold so much."""
_DEAD = b'{"type":"dead"}'
_ENDED = (
    '{"type":"ended","code":%d,"signal":%d,"reason":"%s","started":%s,"wall_s":%r,"cpu_s":%r,'
    '"peak_bytes":%d,"oom_kills":%d,"denied_forks":%d,"outside_kills":%d}'
)
"""Formatted by hand: `json` would take an init longer than the rest of its answer. The reason is that of a watch,
"lapsed", "asked", "failed" or empty."""


class Around:
    """Surroundings of the use: its folders, how all of it is killed, who decides about its signals and forks."""

    def __init__(
        self,
        work: str,
        workspaces: WorkspaceMounts | BareInit,
        kill_all: Callable[[], None],
        relay: CallRelay | None,
        image: ImageRoot | None = None,
        start_beside: Callable[[list[int]], None] | None = None,
    ) -> None:
        self.work = work
        self.workspaces = workspaces
        self.kill_all = kill_all
        self.start_beside = start_beside
        self._image = image
        self._relay = relay

    @property
    def exceeded(self) -> bool:
        """True once the init was asked for more processes and threads than there may be."""
        return self._relay is not None and self._relay.exceeded

    def hand_out(self, control: socket.socket) -> None:
        """Sends the writable layer of the image; only for a box that has one."""
        assert self._image is not None
        handle = self._image.writable()
        try:
            socket.send_fds(control, [b'{"type":"writable"}'], [handle])
        finally:
            os.close(handle)

    def restrict(self, tasks: int) -> None:
        """Processes and threads that there may be; 0: somebody else counts them."""
        if self._relay is not None:
            self._relay.restrict(tasks)

    def answer(self, ready: list[int]) -> bool:
        """Answers calls that the init is asked for. True: there is nothing else to look at."""
        return self._relay is not None and self._relay.serve(ready) and not self._relay.exceeded


class Starvation:
    """Time that processes of the box wait for a processor, and who wants to know it."""

    def __init__(self, meters: Meters) -> None:
        self._meters = meters
        self._before: dict[int, dict[int, float]] = {}
        """For each interpreter whose cell runs: what the processes of the box had waited before it."""
        self.asked: list[int] = []
        """Processes of which the server wants to know it; 0: the worker."""

    def begin(self, pid: int) -> None:
        """A cell of this interpreter begins."""
        self._before[pid] = self._meters.starvation()

    def rest(self) -> None:
        """No cell runs."""
        self._before.clear()

    def answers(self, worker: int) -> Iterator[dict[str, Any]]:
        """Events for the server, which has asked."""
        asked, self.asked = self.asked, []
        for pid in asked:
            seconds = self._meters.starved_since(pid or worker, self._before.get(pid, {}))
            yield {"type": "starved", "pid": pid, "seconds": seconds}


class Kept:
    """Memory that a session holds while none of its cells runs, and what the server knows of it."""

    def __init__(self, meters: Meters, tell: Callable[[dict[str, Any]], None]) -> None:
        self._meters = meters
        self._tell = tell
        self._resident = self._told = 0

    def look(self, watch: Watch, reading: Reading) -> None:
        """Tells the server if this has changed much. `reading` is the newest: with 0 bytes, as before."""
        self._resident = reading.resident_bytes or self._resident
        kept = self._meters.held_bytes(self._resident) if watch.rests else self._told
        if abs(kept - self._told) >= _MUCH:
            self._told = kept
            self._tell({"type": "kept", "bytes": kept})


class Supervisor:
    """`run()` returns when every process but this one is dead."""

    def __init__(
        self,
        control: socket.socket,
        meters: Meters,
        pages: StatusPages,
        pid: int,
        waits: tuple[select.poll, int],
        *,
        number: int,
        around: Around,
        lease: LeaseDeadline,
    ) -> None:
        """`pid` is the worker. `waits`: what waits for orders, changed children and denied forks, and the descriptor
        that can be read when a child of the init has changed its state."""
        self._control = control
        self._meters = meters
        self._pages = pages
        self._poll, self._wakeup = waits
        self._number, self._around, self._lease = number, around, lease
        self._begin: Begin | None = None
        """Limits of the use. A program that ends at once is over before the server sends them."""
        self._started: float | None = None
        """Monotonic seconds."""
        self._collects = False
        self._watch: Watch | None = None
        self._children = Children(pid, meters, pages, self._tell)
        self._reason: str | None = None
        self._due = 0.0
        """Monotonic seconds of the next look at what the use has used; 0: not yet decided."""
        self._starvation = Starvation(meters)
        self._kept = Kept(meters, self._tell)

    def run(self) -> None:
        while self._reason is None:
            self._step()
        self._finish()

    def _step(self) -> None:
        if self._watch is not None:
            timeout = self._watch.wait_s(time.monotonic())
        else:
            timeout = _IDLE_S if self._begin is None else _START_S
        now = time.monotonic()
        self._due = self._due or now + min(timeout, self._lease.left_s(now, begun=self._begun))
        ready = [handle for handle, _ in self._poll.poll(max(self._due - now, 0.0) * 1000 + 1)]
        if self._control.fileno() in ready:
            self._listen()
        if self._wakeup in ready:
            self._hear_signals()
            if not self._children.heard_stop():
                self._children.reap(os.WNOHANG | os.WUNTRACED, serves=self._serves)
        if self._around.answer(ready) and time.monotonic() < self._due and not self._starvation.asked:
            return
        self._due = 0.0
        self._look()
        if self._reason is not None:
            return
        if self._children.over and not self._serves:
            self._reason = ""
        elif self._watch is not None:
            now = time.monotonic()
            reading = self._meters.read(self._watch.memory_bytes)
            if self._watch.late(now):
                reading.starved_s = self._meters.starved_s()
            self._reason = "processes" if self._around.exceeded else self._watch.observe(now, reading) or None
            self._kept.look(self._watch, reading)
        if self._reason is None and self._begun and self._lease.lapsed(time.monotonic()):
            self._reason = "lapsed"
        # After a look: no answer comes from a use that has met a limit already.
        for answer in self._starvation.answers(self._children.pid) if self._reason is None else ():
            self._tell(answer)

    @property
    def _begun(self) -> bool:
        """True if the server wants something of it, or its program started before the server said so."""
        return self._begin is not None or self._started is not None

    @property
    def _serves(self) -> bool:
        return self._begin is not None and self._begin["serves"]

    def _look(self) -> None:
        """Notes whether the program has started, or can't."""
        if self._children.over and self._reason is None and (failure := self._pages.failure()) is not None:
            stage, number, text = failure
            self._tell({"type": "failed", "stage": stage, "errno": number, "error": text, "started": False})
            self._reason = "failed"
            return
        if self._started is None and (started := self._pages.started()) is not None:
            self._started, used_s, self._collects = started
            self._meters.baseline(used_s)
        if self._started is not None and self._watch is None and self._begin is not None:
            self._start_watch(self._started, self._begin)

    def _start_watch(self, now: float, begin: Begin, tick_s: float = 0.0) -> None:
        self._watch = Watch(
            now,
            wall_s=begin["wall_time_s"],
            cpu_s=begin["cpu_time_s"],
            memory_bytes=begin["memory_bytes"],
            sample_memory=not self._meters.guards_memory,
            processors=len(os.sched_getaffinity(0)),
            tick_s=tick_s,
        )

    def _listen(self) -> None:
        """Takes in all that the server has said so far: what an end means depends on what was to be done."""
        for order, handles in _orders(self._control):
            if order["use"] == self._number:  # and not about a use that has ended meanwhile
                self._obey(order, handles)
            for handle in handles:
                os.close(handle)

    def _obey(self, order: dict[str, Any], handles: list[int]) -> None:
        match order["type"]:
            case "begin":
                self._begin = order  # type: ignore[assignment]
                self._meters.most_tasks = order["tasks"]
                self._around.restrict(order["tasks"])
                if order["processes"]:
                    self._meters.restrict(order["memory_bytes"], order["processes"])
                if order["disk_bytes"]:
                    private.resize(self._around.work, order["disk_bytes"], order["inodes"])
                if order["workspace"] and not self._mount(order["workspace"]):
                    return
                if order["processes"] or order["disk_bytes"] or order["workspace"]:
                    self._tell({"type": "armed"})
            case "cell":
                # The next cell of a session: its own time, its own share of CPU time.
                self._meters.baseline(None)
                self._starvation.begin(order["pid"])
                self._start_watch(time.monotonic(), order)  # type: ignore[arg-type]
            case "starved":
                self._starvation.asked.append(order["pid"])
            case "rest":
                self._starvation.rest()
                if self._begin is not None:
                    # Its memory goes on being watched; time and CPU time are not counted while nothing is asked of it.
                    rest = {**self._begin, "wall_time_s": _IDLE_S * 1e5, "cpu_time_s": _IDLE_S * 1e5}
                    self._start_watch(time.monotonic(), rest, tick_s=RESTING_S)  # type: ignore[arg-type]
            case "layer":
                self._children.layer(self._around.workspaces, order["number"], order["parent"])
            case "writable":
                self._around.hand_out(self._control)
            case "beside":
                assert self._around.start_beside is not None
                self._around.start_beside(handles)
            case "signal":
                send_signal(order["pid"] or self._children.pid, order["signal"], order["whom"])
            case "end":
                self._reason = "asked"
            case other:
                raise ValueError(f"order {other!r}")

    def _mount(self, workspace: WorkspaceOrder) -> bool:
        """Mounts the workspace, and says whether it is there. The program is not charged for this."""
        try:
            self._meters.baseline(self._around.workspaces.mount(workspace))
        except OSError as error:
            failed = {"type": "failed", "stage": "workspace", "errno": error.errno or 0, "error": str(error)}
            self._tell({**failed, "started": False})
            self._reason = "failed"
            return False
        return True

    def _hear_signals(self) -> None:
        try:
            if signal.SIGTERM in os.read(self._wakeup, 4096):
                raise EOFError  # the box is to end
        except BlockingIOError:
            pass

    def _finish(self) -> None:
        """Kills, answers, reaps, and answers again."""
        early = self._children.over and self._children.exit is None
        if not self._children.over:
            self._children.ended_at = time.monotonic()
        if not self._begun or self._reason == "failed":
            self._around.kill_all()
            self._children.reap(0)
        elif early and not self._collects and not self._serves:
            last = self._last_reading()
            self._around.kill_all()
            self._answer(last, None)
            if self._meters.alone(self._children.pid):
                os.waitpid(self._children.pid, 0)
            else:
                self._children.reap(0)
        else:
            alive = self._unkilled() if self._children.over and self._meters.looks else None
            self._around.kill_all()
            self._children.reap(0)
            dead = self._meters.read()
            if alive is not None:
                dead.add(alive)
            self._answer(dead, reader_of(self._around.work) if self._collects else None)
            self._children.reap(0)  # the reader
        self._control.send(_DEAD)
        self._hear_signals()  # those of this use shall not wake the next one

    def _unkilled(self) -> Reading:
        """The last look at processes that live. Memory beyond the limit counts as a kill of the kernel would."""
        limit = self._begin["memory_bytes"] if self._begin is not None else 0
        last = self._meters.read_last(self._children.pid, limit)
        if 0 < limit < last.resident_bytes:
            last.oom_kills += 1
        if self._around.exceeded or (self._begin is None and self._meters.exceeds(self._children.pid)):
            last.denied_forks += 1
        return last

    def _last_reading(self) -> Reading:
        """Reading of a program that has said that it has ended, and is about to be killed."""
        last = self._unkilled()
        if (said := self._pages.ended()) is not None:
            # A control group can be a few hundred us late, which is all of a short program.
            last.cpu_s = max(last.cpu_s, min(said[1], last.cpu_s + _LATE_S))
            _let_wait(self._children.pid)
        return last

    def _answer(self, last: Reading, reader: socket.socket | None) -> None:
        said = self._pages.ended()
        exited = self._children.over and said is not None and not self._reason
        ways = {"code": said[0], "signal": 0} if exited and said else self._children.ways()
        watch = self._watch
        began = watch.started if watch else self._started
        sampled = max(watch.peak_bytes if watch else 0, last.resident_bytes, self._children.largest)
        ended = _ENDED % (
            ways["code"],
            ways["signal"],
            self._reason or "",
            "false" if began is None else "true",
            0.0 if began is None else self._children.ended_at - began,
            max(watch.cpu_s if watch else 0.0, last.cpu_s),
            self._meters.peak_bytes(sampled),
            last.oom_kills,
            last.denied_forks,
            last.outside_kills,
        )
        self._children.answered = True
        if reader is None:
            self._control.send(ended.encode())
        else:
            socket.send_fds(self._control, [ended.encode()], [reader.fileno()])
            reader.close()

    def _tell(self, message: dict[str, Any]) -> None:
        self._control.send(json.dumps(message).encode())


def _orders(control: socket.socket) -> Iterator[tuple[dict[str, Any], list[int]]]:
    """Orders that have come, with the descriptors that came with them. EOFError when the server is gone."""
    while True:
        try:
            data, extra, _, _ = control.recvmsg(_MAX_MESSAGE, socket.CMSG_LEN(_HANDLES.size), _AT_ONCE)
        except BlockingIOError:
            return
        if not data:
            raise EOFError
        yield json.loads(data), list(_HANDLES.unpack(extra[0][2])) if extra else []


def _let_wait(pid: int) -> None:
    """The answer goes out before a dying process takes its memory apart, which is the longer work."""
    try:
        os.sched_setscheduler(pid, os.SCHED_BATCH, _NO_PRIORITY)
    except OSError:
        pass  # not allowed everywhere, and only about time
