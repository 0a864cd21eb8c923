"""Signals and forks of a program where Landlock does not scope signals: the init of its box decides about them.

The filter of such a program (`seccomp`) leaves each call that signals somebody, or starts a process or thread, to a
supervisor, which is the init. `fork_gate` knows how many may be started. A process may signal itself, and the kernel
goes on with that. Whomever else it means, the init looks whether that is below the init, and sends the signal itself,
through a descriptor of the process that was taken before the look: process numbers can be given to others at any
moment. Invariants: nothing outside of the box is signalled, nor the init; what is looked at are numbers that came with
the call, never the caller's memory; where the init is gone, such calls fail.

As on newer kernels EPERM tells that there is a process. What only oneself can be sent: a signal for one thread, and
data with a signal (`sigqueue`).
"""

from __future__ import annotations

import _socket
import ctypes
import errno
import os
import select
import signal
import socket
import struct

from executor_service.guest.walls import syscalls as sys_
from executor_service.guest.walls import tree
from executor_service.guest.walls.fork_gate import ForkGate

_NOTIFICATION = struct.Struct("=Q I I i I Q 6Q")
"""Number, thread, flags; call, architecture, place, arguments."""
_REPLY = struct.Struct("=Q q i I")
_NUMBER = struct.Struct("=Q")
_GO_ON = 1
"""Flag of a reply: the kernel carries the call out."""
_AT_ONCE = 16
"""Calls that are answered before the init looks at anything else."""
_FORK = "fork"
_STARTS = {"x86_64": (56, 57, 58)}
"""Numbers of clone, fork and vfork; elsewhere there is clone alone."""
_CALLS = {
    "x86_64": {62: "kill", 200: "tkill", 234: "tgkill", 129: "rt_sigqueueinfo", 297: "rt_tgsigqueueinfo", 424: "pidfd"},
}
_GENERIC = {129: "kill", 130: "tkill", 131: "tgkill", 138: "rt_sigqueueinfo", 240: "rt_tgsigqueueinfo", 424: "pidfd"}
"""Numbers of the architectures that share them, arm64 among them."""
_SYS_TGKILL = {"x86_64": 234}.get(os.uname().machine, 131)
_MEANT = {"kill": 0, "tkill": 0, "tgkill": 1, "rt_sigqueueinfo": 0, "rt_tgsigqueueinfo": 1}
"""Which argument is the number of the process or thread that it is for."""
_HIGHEST = 64
"""The last signal."""
_HIGHEST_PID = 1 << 22

_libc = ctypes.CDLL(None, use_errno=True)


class CallRelay:
    """Supervisor of the signals and forks of one box, made by the box's init."""

    def __init__(self, poll: select.poll) -> None:
        self._poll = poll
        self._ours, self.end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        """Over `end` a worker gives what its calls are read from."""
        self._poll.register(self._ours, select.POLLIN)
        self._listener = -1
        self._root = os.getpid()
        machine = os.uname().machine
        starts = _STARTS.get(machine, (220,))
        self._calls = {**_CALLS.get(machine, _GENERIC), **dict.fromkeys(starts, _FORK)}
        self._gate = ForkGate(self._root)
        self._held: list[bytes] = []
        """Numbers of calls that wait for the gate."""

    @property
    def exceeded(self) -> bool:
        """True once the use wanted to start more processes and threads than it may have; who wanted to, waits."""
        return self._gate.exceeded

    def restrict(self, tasks: int) -> None:
        """Processes and threads that the use may have; 0: somebody else counts them."""
        self._gate.restrict(tasks)
        held, self._held = self._held, []
        for number in held:
            self._start(number)

    def hand_over(self, listener: int, end: int) -> None:
        """In the worker, where `end` has this number. It keeps neither."""
        control = _socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET, 0, end)
        control.sendmsg([b"s"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("=i", listener))])
        control.close()
        os.close(listener)

    def serve(self, ready: list[int]) -> bool:
        """Answers calls that wait, if the poll has said that there are some. Whether it has said nothing else."""
        if self._ours.fileno() in ready:
            _, (self._listener, *_), _, _ = socket.recv_fds(self._ours, 1, 1, socket.MSG_CMSG_CLOEXEC)
            self._poll.register(self._listener, select.POLLIN)
        elif self._listener in ready:
            self._answer()
            return len(ready) == 1
        return False

    def clear(self) -> None:
        """The use is over."""
        self._gate.clear()
        self._held.clear()
        self._stop_listening()

    def _stop_listening(self) -> None:
        if self._listener >= 0:
            self._poll.unregister(self._listener)
            os.close(self._listener)
            self._listener = -1

    def _answer(self) -> None:
        waits = select.poll()
        waits.register(self._listener, select.POLLIN)
        for _ in range(_AT_ONCE):
            events = waits.poll(0)
            if not events or not events[0][1] & select.POLLIN:
                break
            data = sys_.notified(self._listener)
            if data is not None:
                self._decide(data)
        if events and events[0][1] & select.POLLHUP:
            self._stop_listening()  # nobody is left who could call

    def _decide(self, data: bytes) -> None:
        number, thread, _, call, _, _, *arguments = _NOTIFICATION.unpack(data)
        name = self._calls.get(call, "")
        if name == _FORK:
            self._start(_NUMBER.pack(number))
            return
        # A thread that means itself, by its own number: nothing has to be looked up, and it is the most frequent.
        itself = name in _MEANT and arguments[_MEANT[name]] == thread
        result = None if itself else self._result(name, _NUMBER.pack(number), thread, arguments)
        sys_.reply(self._listener, _REPLY.pack(number, 0, -(result or 0), _GO_ON if result is None else 0))

    def _start(self, number: bytes) -> None:
        if self._gate.admits():
            sys_.reply(self._listener, _REPLY.pack(*_NUMBER.unpack(number), 0, 0, _GO_ON))
        else:
            self._held.append(number)

    def _result(self, call: str, number: bytes, thread: int, arguments: list[int]) -> int | None:
        """An errno, 0 for what is done, None for what the kernel is to do: a process that signals itself, by a number
        that is its own as long as it waits."""
        first, second = _signed(arguments[0]), _signed(arguments[1])
        if call == "kill" and not 0 <= second <= _HIGHEST:
            return errno.EINVAL
        caller = _process_of(thread)
        if not caller or not sys_.is_waiting(self._listener, number):
            return errno.EPERM  # it was gone before it could be said who it was
        match call:
            case "kill" | "tgkill" | "rt_sigqueueinfo" | "rt_tgsigqueueinfo" if first == caller:
                return None
            case "kill":
                return self._send(first, second) if first > 0 else self._send_group(first, caller, second)
            case "tkill" if first > 0 and _process_of(first) == caller:
                done = _libc.syscall(ctypes.c_long(_SYS_TGKILL), caller, first, second)
                return ctypes.get_errno() if done < 0 else 0
            case "tkill" | "tgkill" if not (_process_of(first) if first > 0 else 0):
                return errno.ESRCH
            case "pidfd" if not any(arguments[2:4]):
                process = _process_behind(thread, first)
                return errno.EBADF if process is None else self._send(process, second)
        return errno.EPERM

    def _send(self, pid: int, number: int) -> int:
        try:
            handle = os.pidfd_open(pid)
        except OSError:
            # The number of a further thread stands for its process.
            process = _process_of(pid)
            return self._send(process, number) if process not in (0, pid) else errno.ESRCH
        try:
            if not tree.is_below(pid, self._root):
                return errno.EPERM
            signal.pidfd_send_signal(handle, number)
        except OSError as error:
            return error.errno or errno.EPERM
        finally:
            os.close(handle)
        return 0

    def _send_group(self, target: int, caller: int, number: int) -> int:
        """-1: all of the box but the caller and the init; 0: the caller's group; others: that group."""
        if target < -_HIGHEST_PID:
            return errno.ESRCH
        wanted = _group_of(caller) if target == 0 else -target
        found = [
            pid
            for pid in tree.now_below(self._root)
            if (pid != caller if target == -1 else wanted is not None and _group_of(pid) == wanted)
        ]
        found.sort(key=lambda pid: pid == caller)  # itself last: it may end by it
        results = [self._send(pid, number) for pid in found]
        if not results:
            return errno.EPERM if target < -1 and _is_group(-target) else errno.ESRCH
        return 0 if 0 in results else results[0]


def _signed(value: int) -> int:
    """The kernel looks at 32 bits."""
    return ctypes.c_int(value & 0xFFFFFFFF).value


def _process_of(thread: int) -> int:
    """0: there is no such thread."""
    return _number_in(f"/proc/{thread}/status", b"Tgid:")


def _process_behind(thread: int, handle: int) -> int | None:
    """Number of the process behind a descriptor; None: there is none. 0: it is gone, and no process has that number."""
    found = _number_in(f"/proc/{thread}/fdinfo/{handle}", b"Pid:")
    return None if found == 0 else max(found, 0)


def _number_in(path: str, word: bytes) -> int:
    try:
        with open(path, "rb") as file:
            for line in file:
                if line.startswith(word):
                    return int(line.split()[1])
    except OSError:
        pass
    return 0


def _group_of(pid: int) -> int | None:
    try:
        return os.getpgid(pid)
    except OSError:
        return None


def _is_group(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except OSError as error:
        return error.errno == errno.EPERM
    return True
