"""Landlock by ctypes: what a process and its children may open, whom they may signal.

The init of a box puts itself into a domain that scopes signals: `kill(-1)` then reaches the box's processes and nobody
else. Each worker nests a domain of its own in it: files beneath a list of paths alone, no TCP, no signal to the init.
Invariants: a domain can't be left; what this kernel can't restrict is an error and never skipped, because the level is
only offered where all of it works. What Landlock does not know (stat, chmod, chown, connecting to a socket by path) is
left to the system call filter and to file permissions; see docs/security.md.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

_libc = ctypes.CDLL(None, use_errno=True)

# The same numbers on every architecture.
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION = 1
_PATH_BENEATH = 1

NEEDED_ABI = 6
"""Linux 6.12: the first that scopes signals and abstract sockets."""

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_MAKE_CHAR, _MAKE_BLOCK = 1 << 6, 1 << 11
_TRUNCATE, _IOCTL_DEV = 1 << 14, 1 << 15
_EVERYTHING = (1 << 16) - 1
"""Every right to files that ABI 5 and 6 know, from EXECUTE to IOCTL_DEV."""
_OF_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV
"""Rights that a rule for a single file may name."""
_NET_BIND_TCP, _NET_CONNECT_TCP = 1, 2
_SCOPE_ABSTRACT_SOCKETS, _SCOPE_SIGNALS = 1, 2

READ = _EXECUTE | _READ_FILE | _READ_DIR
WRITE = _EVERYTHING & ~(_MAKE_CHAR | _MAKE_BLOCK | _IOCTL_DEV)
DEVICE = _READ_FILE | _WRITE_FILE


def abi() -> int:
    """The version that the kernel claims; 0: there is no Landlock. A claim, no proof: some claim too much."""
    version: int = _libc.syscall(ctypes.c_long(_CREATE_RULESET), None, ctypes.c_size_t(0), ctypes.c_uint(_VERSION))
    return max(version, 0)


def scope_signals() -> None:
    """From here on this process and its children reach each other by signals, and abstract sockets, and nobody else."""
    _enter(_create(0, 0, _SCOPE_SIGNALS | _SCOPE_ABSTRACT_SOCKETS))


def confine(rules: Iterable[tuple[str, int]]) -> None:
    """Allows what `rules` lists as (path, rights), for everything beneath a folder, and nothing else.

    A path that does not exist is an OSError. Needs no_new_privs.
    """
    ruleset = _create(_EVERYTHING, _NET_BIND_TCP | _NET_CONNECT_TCP, _SCOPE_SIGNALS | _SCOPE_ABSTRACT_SOCKETS)
    for path, rights in rules:
        handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
        if not stat.S_ISDIR(os.fstat(handle).st_mode):
            rights &= _OF_FILES
        attributes = struct.pack("=Qi", rights, handle)
        flags = ctypes.c_uint(0)
        done = _libc.syscall(ctypes.c_long(_ADD_RULE), ctypes.c_int(ruleset), _PATH_BENEATH, attributes, flags)
        _check(done, f"landlock_add_rule({path!r})")
        os.close(handle)
    _enter(ruleset)


def _create(files: int, net: int, scoped: int) -> int:
    if abi() < NEEDED_ABI:
        raise OSError(errno.EOPNOTSUPP, f"Landlock has version {abi()}, must be at least {NEEDED_ABI} (Linux 6.12)")
    attributes = struct.pack("=3Q", files, net, scoped)
    size = ctypes.c_size_t(len(attributes))
    ruleset = int(_libc.syscall(ctypes.c_long(_CREATE_RULESET), attributes, size, ctypes.c_uint(0)))
    _check(ruleset, "landlock_create_ruleset")
    return ruleset


def _enter(ruleset: int) -> None:
    flags = ctypes.c_uint(0)
    _check(_libc.syscall(ctypes.c_long(_RESTRICT_SELF), ctypes.c_int(ruleset), flags), "landlock_restrict_self")
    os.close(ruleset)


def _check(result: int, what: str) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
