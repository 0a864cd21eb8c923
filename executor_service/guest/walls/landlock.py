"""Landlock by ctypes: what a process and its children may open, whom they may signal.

The init of a box puts itself into a domain that scopes signals: `kill(-1)` then reaches the box's processes and nobody
else. Each worker nests a domain of its own in it: files beneath a list of paths alone, no TCP, no signal to the init.
Invariants: a domain can't be left; all that this kernel's version can restrict is restricted. What that version does
not know yet is closed otherwise (`seccomp`, `call_relay`, `tree.kill_all`), and so is what none knows (stat, chmod,
chown, connecting to a socket by path): by the system call filter and by file permissions; see
docs/explanation/security.md.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import struct

from executor_service.guest.walls.syscalls import check

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

_libc = ctypes.CDLL(None, use_errno=True)

# The same numbers on every architecture.
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION = 1
_PATH_BENEATH = 1

NEWEST = 6
"""The last version that brought something to restrict: Linux 6.12."""
TRUNCATES = 3
"""Linux 6.2: the first that restricts truncation."""
SCOPES = 6
"""Linux 6.12: the first that scopes signals and abstract sockets."""
_KNOWS_TCP = 4
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_MAKE_CHAR, _MAKE_BLOCK = 1 << 6, 1 << 11
_TRUNCATE, _IOCTL_DEV = 1 << 14, 1 << 15
_EVERYTHING = (1 << 16) - 1
"""Every right to files that version 5 and later know, from EXECUTE to IOCTL_DEV."""
_KNOWN = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 4: (1 << 15) - 1}
"""Rights that older ones know: 2 brought REFER, 3 TRUNCATE. Without REFER nothing can be moved to another folder."""
_OF_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV
"""Rights that a rule for a single file may name."""
_NET_BIND_TCP, _NET_CONNECT_TCP = 1, 2
_SCOPE_ABSTRACT_SOCKETS, _SCOPE_SIGNALS = 1, 2

READ = _EXECUTE | _READ_FILE | _READ_DIR
WRITE = _EVERYTHING & ~(_MAKE_CHAR | _MAKE_BLOCK | _IOCTL_DEV)
DEVICE = _READ_FILE | _WRITE_FILE


_most = [NEWEST]


def abi() -> int:
    """The version to go by; 0: there is no Landlock. What the kernel claims, and no proof: some claim too much."""
    version: int = _libc.syscall(ctypes.c_long(_CREATE_RULESET), None, ctypes.c_size_t(0), ctypes.c_uint(_VERSION))
    return min(max(version, 0), _most[0])


def go_by(version: int) -> None:
    """From here on in this process as on a kernel that has no later version."""
    _most[0] = version


def scope_signals() -> None:
    """From here on this process and its children reach each other by signals, and abstract sockets, and nobody else.
    Needs version `SCOPES`."""
    if abi() < SCOPES:
        raise OSError(errno.EOPNOTSUPP, f"Landlock {abi()} does not scope signals, {SCOPES} (Linux 6.12) does")
    _enter(_create(0, 0, _SCOPE_SIGNALS | _SCOPE_ABSTRACT_SOCKETS))


def confine(rules: Iterable[tuple[str, int]]) -> None:
    """Allows what `rules` lists as (path, rights), for everything beneath a folder, and nothing else.

    A path that does not exist is an OSError. Needs no_new_privs.
    """
    version = abi()
    known = _KNOWN.get(version, _EVERYTHING)
    net = _NET_BIND_TCP | _NET_CONNECT_TCP if version >= _KNOWS_TCP else 0
    ruleset = _create(known, net, _SCOPE_SIGNALS | _SCOPE_ABSTRACT_SOCKETS if version >= SCOPES else 0)
    for path, rights in rules:
        handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
        if not stat.S_ISDIR(os.fstat(handle).st_mode):
            rights &= _OF_FILES
        attributes = struct.pack("=Qi", rights & known, handle)
        flags = ctypes.c_uint(0)
        done = _libc.syscall(ctypes.c_long(_ADD_RULE), ctypes.c_int(ruleset), _PATH_BENEATH, attributes, flags)
        check(done, f"landlock_add_rule({path!r})")
        os.close(handle)
    _enter(ruleset)


def _create(files: int, net: int, scoped: int) -> int:
    attributes = struct.pack("=3Q", files, net, scoped)
    size = ctypes.c_size_t(len(attributes))
    ruleset = int(_libc.syscall(ctypes.c_long(_CREATE_RULESET), attributes, size, ctypes.c_uint(0)))
    check(ruleset, "landlock_create_ruleset")
    return ruleset


def _enter(ruleset: int) -> None:
    flags = ctypes.c_uint(0)
    check(_libc.syscall(ctypes.c_long(_RESTRICT_SELF), ctypes.c_int(ruleset), flags), "landlock_restrict_self")
    os.close(ruleset)
