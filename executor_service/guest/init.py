"""Process 1 of a box: builds it once, then prepares, watches and clears away one use after the other.

A use is: private folders and an IPC namespace in which nothing of an earlier use is left, a worker forked ahead of the
request; the server says how much it may use and sends it what to run; the worker ends or meets a limit; everything is
killed and reaped; what it has left behind goes.

Invariants: nothing of any request is ever in this process's memory, because the next worker is forked from it: code,
input and files go from the server straight to the worker, and files to be returned are read by a child of their own.
A use is over when its last process is dead, and the next begins after that. Its clock starts when the worker says so.
"""

from __future__ import annotations

import _operator
import _socket
import fcntl
import gc
import json
import os
import select
import signal
import socket
import struct
import time

from executor_service.guest import worker
from executor_service.guest.image_root import ImageRoot
from executor_service.guest.lease import LeaseDeadline
from executor_service.guest.meters import Meters
from executor_service.guest.protocol.status_page import StatusPages
from executor_service.guest.supervisor import Around, Supervisor
from executor_service.guest.walls import mounts
from executor_service.guest.walls import syscalls as sys_
from executor_service.guest.walls.call_relay import CallRelay
from executor_service.guest.walls.confine import Confinement, prepare
from executor_service.guest.walls.private import PrivateFolders
from executor_service.guest.walls.signals import kill_all
from executor_service.guest.walls.traces import LONG_S, ObjectNumbers, PacketCounts
from executor_service.guest.walls.without_namespaces import BareInit
from executor_service.guest.walls.workspace import WorkspaceMounts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

    from executor_service.guest.program import PythonProgram
    from executor_service.guest.protocol.spec import BoxSpec, Groups

_LOW = 4
_IFF_UP = 0x1
_SIOCSIFFLAGS = 0x8914
_LAST_PID = "kernel/ns_last_pid"
_OOM_SCORE = "self/oom_score_adj"
_BUFFERS = b"4096 16384 65536"
"""Least, usual and most bytes that one end of a connection buffers. Nobody far away is waited for, and of hundreds of
sockets to a process each could else hold megabytes."""
_NETWORK = (
    ("net/ipv4/tcp_rmem", _BUFFERS),
    ("net/ipv4/tcp_wmem", _BUFFERS),
    ("net/ipv4/tcp_max_tw_buckets", b"0"),
)
"""Settings of each network namespace, where they can be written."""
_READY = [b'{"type":"ready"}']
_HANDLES = struct.Struct("=3i")

_held: list[object] = []
"""Objects of the init that a worker keeps: taking them apart costs more."""


def serve(
    control: socket.socket, leases: int, spec: BoxSpec, *, privileged: bool, bare: bool, seccomp: bytes
) -> PythonProgram:
    """Never returns in the init; returns in workers that are to be Python programs. `leases`: the page of leases."""
    stage = "namespaces"
    instead: BareInit | None = None
    try:
        sys_.prctl(sys_.PR_SET_PDEATHSIG, signal.SIGKILL)
        control.set_inheritable(False)
        stage = "descriptors"
        hold_low_numbers()
        lease = LeaseDeadline(leases, spec["number"])
        stage = "control groups"
        meters = Meters(spec["groups"])
        join_for_good(spec["groups"], bare=bare)
        last_pid, store, network, image = None, -1, None, -1
        if bare:
            stage = "landlock"
            proc = os.open("/proc", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            instead = BareInit(spec, spec["uid"] if privileged else None)
            meters.pids = instead.pids
        else:
            stage = "namespaces"
            sys_.unshare(sys_.CLONE_NEWNS | sys_.CLONE_NEWIPC | sys_.CLONE_NEWUTS)
            socket.sethostname("sandbox")
            settings = mounts.open_settings()
            last_pid = _open_or_none(_LAST_PID, settings)
            stage = "mounts"
            store, image, proc = mounts.build_root(spec, spec["uid"] if privileged else 0)
            stage = "root"
            mounts.enter_root()
            stage = "network"
            network = Network(settings)
        # Before the first fork: a program must never find an init that can be traced or read.
        oom_score = _open_or_none(_OOM_SCORE, proc)  # now, while it is ours
        sys_.prctl(sys_.PR_SET_DUMPABLE, 0)
        confinement = Confinement(spec, privileged, seccomp, meters.attach, bare=instead, proc=proc)
        kernel = (last_pid, oom_score)
        box = Init(control, lease, spec, confinement, store, network, image, meters=meters, kernel=kernel)
        stage = "worker"
        while True:
            program = box.use_once()
            if program is not None:
                return program
    except EOFError:
        if instead is not None:
            instead.abandon()
        os._exit(0)  # the server is gone, or wants the box no more; the kernel kills what is in it
    except BaseException as error:  # reported by stage; a forked child must not unwind
        if instead is not None:
            instead.end_all()
        _fail(control, stage, getattr(error, "errno", None) or 0, f"{type(error).__name__}: {error}")


def _fail(control: socket.socket, stage: str, number: int, text: str) -> NoReturn:
    try:
        message = {"type": "failed", "stage": stage, "errno": number, "error": text, "started": False}
        control.send(json.dumps(message).encode())
    finally:
        os._exit(1)


class Init:
    def __init__(
        self,
        control: socket.socket,
        lease: LeaseDeadline,
        spec: BoxSpec,
        confinement: Confinement,
        store: int,
        network: Network | None,
        image: int,
        *,
        meters: Meters,
        kernel: tuple[int | None, int | None],
    ) -> None:
        """`kernel`: descriptors of `_LAST_PID` and `_OOM_SCORE`, for who may write them."""
        self._control = control
        self._lease = lease
        self._spec = spec
        uid = spec["uid"] if confinement.image_owner is None else confinement.image_owner
        self._owner = uid if confinement.privileged else 0
        self._image = None if image < 0 else ImageRoot(spec, image, self._owner)
        self._confinement = confinement
        self._bare = confinement.bare
        self._workspaces = WorkspaceMounts(store, self._owner)
        self._private = PrivateFolders(spec, self._owner)
        self._network = network
        self._objects = None if self._bare else ObjectNumbers()
        prepare(confinement)
        self._meters = meters
        self._last_pid, oom_score = kernel
        meters.last_pid = self._last_pid
        self._pages = StatusPages()
        self._oom_score = oom_score
        self._uses = 0
        self._own_score = os.pread(oom_score, 16, 0) if oom_score is not None else b""
        self._wakeup, end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        # Any handler makes the signal wake a poll; this one does nothing, and does it without a frame of Python.
        signal.signal(signal.SIGCHLD, _operator.is_)
        signal.set_wakeup_fd(end, warn_on_full_buffer=False)
        self._poll = select.poll()
        for handle in (control.fileno(), self._wakeup):
            self._poll.register(handle, select.POLLIN)
        meters.wake(self._poll)
        self._worker = worker.Socket()
        self._around = Around(spec["work"], self._workspaces, kill_all, None, self._image, self._start_beside)
        """Surroundings of every use, if nothing stands in for namespaces."""
        if self._bare is not None:
            self._bare.listen()
            if not self._bare.scoped:
                confinement.relay = CallRelay(self._poll)

    def use_once(self) -> PythonProgram | None:
        """One use, from the worker's fork to the moment at which nothing of it is left. In the worker: the program."""
        self._pages.clear()
        if self._bare is not None:
            self._bare.prepare()
        else:
            self._workspaces.private = self._private.prepare()
            if self._image is not None:
                self._image.mount(self._workspaces.private)
        ours, streams = self._streams()
        if self._last_pid is not None:
            os.pwrite(self._last_pid, b"1", 0)  # the worker is always process 2: nothing tells how many came before
        self._meters.begin()
        pid = self._fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            _held.append(self)
            return worker.become(self._confinement, streams, self._pages, self._worker)
        for handle in streams:
            os.close(handle)
        self._control.sendmsg(_READY, [(socket.SOL_SOCKET, socket.SCM_RIGHTS, _HANDLES.pack(*ours))])
        for handle in ours:
            os.close(handle)
        around = self._around
        if self._bare is not None:
            around = Around(self._bare.work, self._bare, self._bare.kill_all, self._confinement.relay)
        self._uses += 1
        waits = (self._poll, self._wakeup)
        use = Supervisor(
            self._control,
            self._meters,
            self._pages,
            pid,
            waits,
            number=self._uses,
            around=around,
            lease=self._lease,
        )
        use.run()
        self._clear()
        self._meters.end()
        if self._meters.spoiled():
            raise EOFError  # the next use shall have another box
        return None

    def _start_beside(self, ends: list[int]) -> None:
        """Forks another worker of the use, with these ends (data, stdout, stderr)."""
        try:
            pid = self._fork()
        except OSError:
            return  # the server sees that nobody has the other ends
        if pid == 0:
            signal.set_wakeup_fd(-1)
            worker.become(self._confinement, ends, worker.BesidePages(self._worker), self._worker)

    def _fork(self) -> int:
        gc.freeze()  # what the init holds is nothing that a collection in the program has to look at
        if self._oom_score is None:
            return os.fork()
        # When the whole machine runs out of memory, the kernel shall take the program and not its init.
        os.pwrite(self._oom_score, b"1000", 0)
        pid = os.fork()
        if pid:
            os.pwrite(self._oom_score, self._own_score, 0)
        return pid

    def _streams(self) -> tuple[list[int], list[int]]:
        """Ends for the server (data, stdout, stderr), and for the worker (the same)."""
        data, data_end = _socket.socketpair()  # without the enums of `socket`, which cost more than the call
        ours, theirs = [data.detach()], [data_end.detach()]
        for _ in range(2):
            reader, writer = os.pipe2(os.O_CLOEXEC)
            if self._owner:
                os.fchown(writer, self._owner, self._owner)  # so that the program can open /dev/stdout
            ours.append(reader)
            theirs.append(writer)
        return ours, theirs

    def _clear(self) -> None:
        """Everything is dead. What the kernel kept beyond that goes too."""
        if self._bare is not None:
            if self._confinement.relay is not None:
                self._confinement.relay.clear()
            self._bare.clear()
            return
        if self._image is not None:
            self._image.clear()
        self._workspaces.clear()
        self._private.clear(0 if self._image is not None else self._pages.changed_ns())
        self._clear_ipc()
        if self._network is not None:
            self._network.clear()

    def _clear_ipc(self) -> None:
        """A namespace of its own for the next use if anything was made in this one, and may be gone again; or if the
        use has had time to make so many that the numbers come again."""
        started = self._pages.started()
        long = started is None or time.monotonic() - started[0] > LONG_S
        assert self._objects is not None
        if long or self._objects.used():
            sys_.unshare(sys_.CLONE_NEWIPC)
            self._objects = ObjectNumbers()


def hold_low_numbers() -> None:
    """Takes descriptors up to 4, which workers use, so that none of the init's own gets such a number."""
    while (handle := os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)) <= _LOW:
        pass
    os.close(handle)


def join_for_good(groups: Groups, *, bare: bool) -> None:
    """The init is in no group whose memory is limited: a program that fills it must not take the init with it.

    Where workers join none, they live in the namespace that is made here, in which /proc/self/cgroup shows `/`.
    """
    for path in groups["init"]:
        _join(path)
    if not bare and not groups["attach"] and not groups["each_use"]:
        sys_.unshare(sys_.CLONE_NEWCGROUP)


def _join(path: str) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    os.write(handle, b"0")
    os.close(handle)


def _open_or_none(path: str, folder: int | None = None) -> int | None:
    try:
        return os.open(path, os.O_RDWR | os.O_CLOEXEC, dir_fd=folder)
    except OSError:
        return None  # not everybody may; process numbers then go on counting


class Network:
    """A network namespace with a loopback and nothing else; another one once something has happened in it."""

    def __init__(self, settings: int) -> None:
        """`settings` is a descriptor of /proc/sys."""
        self._settings = settings
        self._counts: PacketCounts | None = None
        self._fresh: list[bytes] = []
        self._renew()

    def clear(self) -> None:
        """Everything that used it is dead."""
        if self._counts is None or self._counts.look() != self._fresh:
            self._renew()

    def _renew(self) -> None:
        sys_.unshare(sys_.CLONE_NEWNET)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
            fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", _IFF_UP))
        for path, value in _NETWORK:
            handle = _open_or_none(path, self._settings)
            if handle is not None:
                os.write(handle, value)
                os.close(handle)
        if self._counts is not None:
            self._counts.close()
        self._counts = PacketCounts("1")
        self._fresh = self._counts.look()
