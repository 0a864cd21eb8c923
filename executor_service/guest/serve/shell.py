"""Serves a session whose cells are commands of one shell, which keeps variables, functions, folder and jobs.

The shell is a child that takes commands as from a person, so that an interrupt ends the whole command and spares the
shell. It says each exit code over a pipe that nothing of the commands gets. Frames are those of `cells`, without
`branch`. Where there is no shell, the first frame is `lacking` in place of `ready`. The second argument of the
interpreter is the folder that shells start in; empty: the workspace, or else the work folder.

Invariants: a shell that ends is followed by another one, and the answer says so; a signal to interrupt reaches commands
and never this process; nothing is imported here, because in an image whatever could be found is the image's. The
commands can do everything that this process can: what protects others is that the server takes what comes for a claim.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # without the enums of `signal`
import fcntl
import os
import select
import sys
import time

from executor_service.guest.protocol import wire
from executor_service.guest.serve.work_folder import WORKSPACE, put_files, send_done, split_cell
from executor_service.guest.walls.tree import resident_bytes, stat_fields, waited_s

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from executor_service.guest.protocol.wire import GuestChannel, Head

_SHELLS = (("bash", "--noprofile", "--norc", "--noediting", "-i"), ("sh", "-i"))
"""The first that there is. Not every image has bash."""
_COMMAND, _INPUT, _ERRORS, _CODES = 6, 7, 8, 9
"""Descriptors of a `sh`, which knows none of two digits: a file with the command, what is its standard input, the
session's standard error until the shell has no prompt any more, and where exit codes are said."""
_OF_BASH = 10
"""Distance at which bash has them: commands use the low ones, and would not find them again."""
_ABOVE = 20
"""Descriptors here are none of either."""
_QUIET_BASH = b"set +o history +H\n"
"""An exclamation mark in a command is nothing but that."""
SIGNALS = (_signal.SIGINT, _signal.SIGPIPE, _signal.SIGXFSZ)
"""Signals that do to a shell what they usually do, and not what they do to an interpreter of Python."""
_LOOK_MS = 50
"""Between two looks whether the shell lives, where something else keeps its pipe open."""
_ASK_AGAIN_S = 0.05
"""So long after it was asked for an exit code a `sh` is asked again, then after twice the time: dash drops what it has
read beyond a line that has an error, or is interrupted."""
_LINE = 64
"""More than a number and an exit code have."""
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
_MOST_HEARD = 4096
_CPU_FIELDS = slice(11, 15)
"""User and system time, its own and that of the children that it waited for, counted from the state."""


def serve(channel: GuestChannel) -> None:
    """Serves until the channel ends."""
    sys.meta_path.clear()
    try:
        server = ShellServer(channel)
    except OSError as error:
        channel.send({"type": "lacking", "reason": wire.short(str(error))})
        return
    try:
        server.serve()
    except OSError as error:  # the commands have taken away what a new shell needs
        os.write(2, f"no shell can be started: {error}\n".encode("utf-8", "backslashreplace"))
        os._exit(1)


class ShellServer:
    def __init__(self, channel: GuestChannel) -> None:
        """OSError where no shell can be started, or not in that folder."""
        self._channel = channel
        self._work = os.path.dirname(sys.modules["__main__"].__dict__["__file__"])
        self._start_folder = start_folder(self._work)
        self._stdin = _above(os.memfd_create("stdin"))
        self._command = _above(os.memfd_create("command"))
        self._replaced = ""
        """Sentence of the answer, if a shell has ended."""
        self._last = 0
        """Exit code of the last command, which the shell does not remember: it was asked for it since."""
        self._busy = self._interrupted = False
        self._is_sh = False
        """It is no bash, and may be dash."""
        self._base = 0
        """Distance of the shell's descriptors."""
        self._shell = self._status = 0
        self._commands = self._codes = -1
        _signal.signal(_signal.SIGINT, self._interrupt)
        self._start()

    def serve(self) -> None:
        self._channel.send({"type": "ready"})
        while (frame := self._channel.receive()) is not None:
            head, blob = frame
            if head["type"] == "cell":
                self._run(head, blob)

    def _interrupt(self, *_: object) -> None:
        """As Ctrl-C of a person: to the shell and to what it waits for."""
        if self._busy:
            self._interrupted = True
            try:
                os.killpg(self._shell, _signal.SIGINT)
            except OSError:
                pass  # it has ended

    def _start(self) -> None:
        """Starts a shell in the folder that the session began in. OSError where that can't be."""
        os.chdir(self._start_folder)
        ends: list[int] = []
        for _ in range(2):
            ends += os.pipe()
        source, self._commands, self._codes, codes_end = (_above(end) for end in ends)
        places = {_COMMAND: self._command, _INPUT: self._stdin, _ERRORS: 2, _CODES: codes_end}
        try:
            for argv in _SHELLS:
                self._is_sh = argv[0] != "bash"
                self._base = 0 if self._is_sh else _OF_BASH
                try:
                    self._shell = _spawned(argv, source, {self._base + to: place for to, place in places.items()})
                    break
                except FileNotFoundError:
                    if argv is _SHELLS[-1]:
                        raise
        finally:
            os.close(source)
            os.close(codes_end)
        self._last = 0
        errors = self._base + _ERRORS
        quiet = b"" if self._is_sh else _QUIET_BASH
        self._tell(b"%bPS1= PS2=\nexec 2>&%d %d>&-\n" % (quiet, errors, errors))

    def _tell(self, text: bytes) -> None:
        view = memoryview(text)
        try:
            while view:
                view = view[os.write(self._commands, view) :]
        except BrokenPipeError:
            pass  # it has ended, which is noticed

    def _run(self, head: Head, blob: bytes) -> None:
        code_text, data, files = split_cell(head, blob)
        command = bytes(code_text)
        cpu = self._cpu_s()
        try:
            if b"\0" in command:
                raise ValueError("the command has a NUL character")
            fill(self._stdin, data)
            put_files(self._work, head["files"], files)
        except (OSError, ValueError) as error:
            self._answer(head, cpu, {"problem": wire.short(f"the command could not be handed over: {error}")})
            return
        self._replaced = ""
        if self._has_ended():  # since the last command
            self._replace()
        self._busy = True
        code = self._code_of(command, head["cell"], b"&%d" % (self._base + _INPUT) if data else os.devnull.encode())
        self._busy = False
        if code is None:
            code = os.waitstatus_to_exitcode(self._status)
            code = code if code >= 0 else 128 - code
            self._replace()
        else:
            self._last = code
        self._answer(head, cpu, {"exit_code": code, "replaced": self._replaced})

    def _taking(self, command: bytes) -> bytes:
        """Line that makes the shell run a command. A shell reads what is typed byte for byte, and a file whole."""
        if self._is_sh:  # after an error, dash could not be interrupted any more if it is asked for `command`
            return b"\\eval " + _quoted(command)
        file = f"/dev/fd/{self._base + _COMMAND}"
        if not os.path.exists(file):  # a level without /proc
            return b"\\command \\eval " + _quoted(command)
        fill(self._command, memoryview(command))
        return b"\\command . " + file.encode()

    def _has_ended(self) -> bool:
        pid, self._status = os.waitpid(self._shell, os.WNOHANG)
        return pid != 0

    def _replace(self) -> None:
        """Another shell in the place of one that has ended."""
        code = os.waitstatus_to_exitcode(self._status)
        ended = f"exited with code {code}" if code >= 0 else f"was ended by signal {-code}"
        self._replaced = f"The shell {ended}. The session goes on with a new one: files stay, variables are gone."
        os.close(self._commands)
        os.close(self._codes)
        self._start()

    def _code_of(self, command: bytes, number: int, source: bytes) -> int | None:
        """Runs a command, whose standard input comes from `source`. Its exit code; None: the shell has ended."""
        # An interrupt ends the first line, and what the second one says is the code of that. Nothing that commands have
        # named `eval` or `echo` is meant, and a shell that traces what it does is silent on the second.
        codes = self._base + _CODES
        run = b"%b %d>&- <%b\n" % (self._taking(command), codes, source)
        ask = b"{ \\command \\echo %d $?; } >&%d 2>/dev/null\n" % (number, codes)
        self._tell((b"(exit %d) || " % self._last if self._last else b"") + run + ask)
        asked, again_s = time.monotonic(), _ASK_AGAIN_S
        poll = select.poll()
        poll.register(self._codes, select.POLLIN)
        said, pause_s = b"", 0.001
        while True:
            data = os.read(self._codes, _MOST_HEARD) if (heard := poll.poll(_LOOK_MS)) else b""
            *lines, said = (said + data).split(b"\n")
            said = said[-_LINE:]
            for line in lines:
                about, _, code = line.partition(b" ")
                if about == b"%d" % number and code.isdigit():
                    return int(code[-3:]) & 0xFF
            if not data and self._has_ended():
                return None
            if self._is_sh and (self._interrupted or time.monotonic() > asked + again_s):
                self._interrupted, again_s = False, 2 * again_s
                self._tell(ask)
            if heard and not data:
                time.sleep(pause_s)  # it is about to end, or has closed its pipe and can't be heard any more
                pause_s = min(2 * pause_s, _LOOK_MS / 1000)

    def _answer(self, head: Head, cpu_before: float, ending: Head) -> None:
        resident = resident_bytes() + resident_bytes(self._shell)
        facts = {
            "cpu_s": max(0.0, self._cpu_s() - cpu_before),
            "peak_bytes": resident,
            "resident_bytes": resident,
            **ending,
        }
        send_done(self._channel, self._work, head, facts)

    def _cpu_s(self) -> float:
        """CPU seconds so far of the shells, and of what they have waited for."""
        return time.process_time() + waited_s() + sum(map(int, stat_fields(self._shell)[_CPU_FIELDS])) * _TICK_S


def start_folder(work: str) -> str:
    """Folder that the session begins in, made if it is one that its image names and has not. OSError."""
    folder = sys.argv[1] or os.environ.get(WORKSPACE) or work
    os.makedirs(folder, exist_ok=True)
    return folder


def _spawned(argv: tuple[str, ...], source: int, places: dict[int, int]) -> int:
    """Starts a shell that reads commands from `source` and says nothing. `places`: its descriptors, and ours that they
    are. FileNotFoundError if there is none of that name."""
    actions: list[tuple[Any, ...]] = [(os.POSIX_SPAWN_DUP2, source, 0)]
    actions += [(os.POSIX_SPAWN_DUP2, place, to) for to, place in places.items()]
    actions.append((os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0))
    return os.posix_spawnp(argv[0], argv, os.environ, file_actions=actions, setpgroup=0, setsigdef=SIGNALS)


def fill(handle: int, data: memoryview) -> None:
    """Makes `data` what is read from `handle`."""
    os.ftruncate(handle, 0)
    os.lseek(handle, 0, os.SEEK_SET)
    while data:
        data = data[os.write(handle, data) :]
    os.lseek(handle, 0, os.SEEK_SET)


def _quoted(text: bytes) -> bytes:
    """`text` as one word of a shell."""
    return b"'" + text.replace(b"'", b"'\"'\"'") + b"'"


def _above(handle: int) -> int:
    moved = fcntl.fcntl(handle, fcntl.F_DUPFD_CLOEXEC, _ABOVE)
    os.close(handle)
    return moved
