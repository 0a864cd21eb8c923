"""Linux system calls that Python 3.11 does not offer, by ctypes. Each raises OSError that names the call."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import struct

_libc = ctypes.CDLL(None, use_errno=True)
# With types, arguments are converted without an object for each. Indexing makes a function object of its own.
_IPC_RMID = 0
_prctl = _libc["prctl"]
_prctl.argtypes = (ctypes.c_int, ctypes.c_ulong, ctypes.c_ulong, ctypes.c_ulong, ctypes.c_ulong)
_mmap = _libc["mmap"]
_mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
_mmap.restype = ctypes.c_void_p
_PROT_READ, _MAP_SHARED, _MAP_FAILED = 1, 1, ctypes.c_void_p(-1).value
_close_range = _libc["syscall"]
_close_range.argtypes = (ctypes.c_long, ctypes.c_uint, ctypes.c_uint, ctypes.c_uint)
_statx = _libc["statx"]
_statx.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_uint, ctypes.c_void_p)
_fstatfs = _libc["fstatfs"]
_fstatfs.argtypes = (ctypes.c_int, ctypes.c_void_p)
_listxattr = _libc["listxattr"]
_listxattr.argtypes = (ctypes.c_char_p, ctypes.c_void_p, ctypes.c_size_t)
_listxattr.restype = ctypes.c_ssize_t
_ipc = tuple(
    (_libc[f"{kind}get"], get, _libc[f"{kind}ctl"], control)
    for kind, get, control in (
        ("shm", (0, 1, 0o600), (_IPC_RMID, None)),
        ("sem", (0, 1, 0o600), (0, _IPC_RMID)),
        ("msg", (0, 0o600), (_IPC_RMID, None)),
    )
)
"""Calls that make and remove shared memory, semaphores and queues of System V, each with its arguments."""

CLONE_NEWNS = 0x00020000
CLONE_NEWCGROUP = 0x02000000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

MS_RDONLY = 1
MS_NOSUID = 2
MS_NODEV = 4
MS_NOEXEC = 8
MS_BIND = 1 << 12
MS_MOVE = 1 << 13
MS_REC = 1 << 14
MS_PRIVATE = 1 << 18
MS_REMOUNT = 32
MNT_DETACH = 2

MOUNT_ATTR_RDONLY = 1
MOUNT_ATTR_NOSUID = 2
MOUNT_ATTR_NODEV = 4
MOUNT_ATTR_NOEXEC = 8

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_SET_SECCOMP = 22
PR_CAPBSET_DROP = 24
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38
PR_CAP_AMBIENT = 47
_PR_CAP_AMBIENT_CLEAR_ALL = 4
_SECCOMP_MODE_FILTER = 2
_SET_MODE_FILTER = 1
_NEW_LISTENER, _WAIT_KILLABLE = 1 << 3, 1 << 5
"""The second since Linux 5.19: a caller that has been read waits until it is answered or killed."""
_SYS_SECCOMP = {"x86_64": 317, "aarch64": 277, "riscv64": 277}
"""Number of seccomp() on the architectures whose signals `call_relay` knows by number."""
_NOTIFICATION_BYTES = 80
_NOTIF_RECV, _NOTIF_SEND, _NOTIF_ID_VALID = 0xC0502100, 0xC0182101, 0x40082102
"""Requests of linux/seccomp.h, of 80, 24 and 8 bytes."""

CAP_KILL = 5

# These have the same number on every architecture.
_SYS_OPEN_TREE = 428
_SYS_MOVE_MOUNT = 429
_SYS_CLOSE_RANGE = 436
_SYS_MOUNT_SETATTR = 442
_AT_FDCWD = -100
_AT_EMPTY_PATH = 0x1000
_AT_RECURSIVE = 0x8000
_OPEN_TREE_CLONE = 1
_MOVE_MOUNT_F_EMPTY_PATH = 4
_MOUNT_ATTR_IDMAP = 0x100000
_STATX_BYTES = 256
_STATX_TIMES = 64
"""Offset of the times in struct statx."""
_STATX_BASIC = 0x7FF
_STATFS_BYTES = 120
"""struct statfs, where longs have 64 bits."""
_CAPABILITY_VERSION_3 = 0x20080522
_CAPABILITY_HEADER = struct.pack("=Ii", _CAPABILITY_VERSION_3, 0)
_NO_CAPABILITIES = bytes(24)
"""Two of struct __user_cap_data_struct."""


def check(result: int, what: str) -> None:
    """OSError that names the call, for a result below 0."""
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def open_as(path: str, uid: int, gid: int) -> int:
    """Opens a file for reading as another user, which root alone can."""
    _libc.setfsgid(gid)
    _libc.setfsuid(uid)
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    finally:
        _libc.setfsuid(os.geteuid())
        _libc.setfsgid(os.getegid())


def unshare(flags: int) -> None:
    check(_libc.unshare(ctypes.c_int(flags)), f"unshare({flags:#x})")


def _path(text: str | None) -> bytes | None:
    return None if text is None else os.fsencode(text)


def mount(source: str | None, target: str, kind: str | None = None, flags: int = 0, data: str | None = None) -> None:
    result = _libc.mount(_path(source), _path(target), _path(kind), ctypes.c_ulong(flags), _path(data))
    check(result, f"mount({kind or source!r} on {target!r})")


def unmount(target: str) -> None:
    """Detaches it now, frees it when nothing uses it any more."""
    check(_libc.umount2(_path(target), MNT_DETACH), f"umount2({target!r})")


def restrict_mount(target: str, attributes: int, *, recursive: bool) -> None:
    """Adds attributes to a mount, and to those below it; what is already restricted stays so (Linux 5.12)."""
    _set_attributes(_AT_FDCWD, target, _AT_RECURSIVE if recursive else 0, attributes)


def set_read_only(target: str, *, read_only: bool) -> None:
    """Makes a mount writable, or not, whatever it was."""
    add, drop = (MOUNT_ATTR_RDONLY, 0) if read_only else (0, MOUNT_ATTR_RDONLY)
    _set_attributes(_AT_FDCWD, target, 0, add, drop)


def _set_attributes(folder: int, target: str, flags: int, add: int, drop: int = 0, user_namespace: int = 0) -> None:
    values = struct.pack("=4Q", add, drop, 0, user_namespace)
    size = ctypes.c_size_t(len(values))
    result = _libc.syscall(ctypes.c_long(_SYS_MOUNT_SETATTR), folder, _path(target), flags, values, size)
    check(result, f"mount_setattr({target!r}, {add:#x})")


def bind_mapped(source: int, target: str, user_namespace: int) -> None:
    """Binds a folder, given by a descriptor, with its owners mapped by a user namespace (Linux 5.12)."""
    tree = _libc.syscall(ctypes.c_long(_SYS_OPEN_TREE), source, b"", _OPEN_TREE_CLONE | os.O_CLOEXEC | _AT_EMPTY_PATH)
    check(tree, "open_tree")
    try:
        _set_attributes(tree, "", _AT_EMPTY_PATH, _MOUNT_ATTR_IDMAP, user_namespace=user_namespace)
        flags = _MOVE_MOUNT_F_EMPTY_PATH
        result = _libc.syscall(ctypes.c_long(_SYS_MOVE_MOUNT), tree, b"", _AT_FDCWD, _path(target), flags)
        check(result, f"move_mount({target!r})")
    finally:
        os.close(tree)


class FolderFacts:
    """All that can be changed about three folders of one file system, as the kernel gives it: as numbers, and no name
    that a program chose. Of the last folder the times are left out, and its extended attributes are looked at, which
    else the times tell."""

    def __init__(self, first: str, second: str, last: str) -> None:
        self._paths = (os.fsencode(first), os.fsencode(second), os.fsencode(last))
        self._room = ctypes.create_string_buffer(_STATFS_BYTES)
        self._facts = [ctypes.create_string_buffer(_STATX_BYTES) for _ in self._paths]
        self._addresses = [ctypes.addressof(facts) for facts in self._facts]

    def look(self, handle: int) -> bytes:
        """`handle` is a descriptor of anything in the file system. Two looks are equal when nothing has changed."""
        check(_fstatfs(handle, ctypes.addressof(self._room)), "fstatfs")
        for path, address in zip(self._paths, self._addresses, strict=True):
            check(_statx(_AT_FDCWD, path, 0, _STATX_BASIC, address), "statx")
        size: int = _listxattr(self._paths[2], None, 0)
        check(size, "listxattr")
        first, second, last = self._facts
        facts = (self._room.raw, first.raw, second.raw, last.raw[:_STATX_TIMES])
        return b"%d" % size + b"".join(facts)


def ipc_numbers() -> list[int]:
    """Takes a number each for shared memory, semaphores and queues of System V: the next ones of this namespace."""
    numbers = []
    for make, arguments, remove, how in _ipc:
        number: int = make(*arguments)
        check(number, "ipc")
        check(remove(number, *how), "ipc")
        numbers.append(number)
    return numbers


def pivot_root(new_root: str, old_root: str) -> None:
    check(_libc.pivot_root(_path(new_root), _path(old_root)), "pivot_root")


def prctl(option: int, argument: int = 0, second: int = 0) -> None:
    if _prctl(option, argument, second, 0, 0) < 0:
        check(-1, f"prctl({option})")


def close_from(first: int) -> None:
    """Closes every descriptor from `first` on (Linux 5.9)."""
    check(_close_range(_SYS_CLOSE_RANGE, first, 0xFFFFFFFF, 0), "close_range")


def may_write_trusted(folder: str) -> bool:
    """Says whether the layers' own records can be kept in their default place. In a user namespace they can't, and
    overlayfs would go on without them, and fail when a folder is removed."""
    try:
        os.setxattr(folder, "trusted.fairbox", b"")
    except OSError:
        return False
    os.removexattr(folder, "trusted.fairbox")
    return True


def drop_bounding_set(kept: tuple[int, ...] = ()) -> None:
    """No exec can bring a capability back, but for those that are kept."""
    prctl(PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL)
    for capability in range(64):
        if capability in kept:
            continue
        try:
            prctl(PR_CAPBSET_DROP, capability)
        except OSError:
            if capability <= CAP_KILL:
                raise
            return  # beyond the last capability of this kernel


def drop_capabilities(kept: tuple[int, ...] = ()) -> None:
    """Takes all capabilities from this thread, but for those that are kept."""
    mask = sum(1 << capability for capability in kept)
    data = struct.pack("=6I", mask, mask, 0, 0, 0, 0) if kept else _NO_CAPABILITIES
    check(_libc.capset(_CAPABILITY_HEADER, data), "capset")


class _SockFprog(ctypes.Structure):
    _fields_ = (("len", ctypes.c_ushort), ("filter", ctypes.c_void_p))


class Filter:
    """A filter of system calls: an array of struct sock_filter. Made ahead, so that little is left to each worker."""

    def __init__(self, program: bytes) -> None:
        self._buffer = ctypes.create_string_buffer(program, len(program))
        self._program = _SockFprog(len(program) // 8, ctypes.cast(self._buffer, ctypes.c_void_p))
        self._address = ctypes.addressof(self._program)

    def install(self) -> None:
        """Needs no_new_privs."""
        check(_prctl(PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, self._address, 0, 0), "seccomp")

    def install_supervised(self) -> int:
        """The same, for a filter that leaves calls to a supervisor. Returns where that reads them."""
        number = _SYS_SECCOMP.get(os.uname().machine)
        if number is None:
            raise OSError(errno.ENOSYS, f"nobody has written down the number of seccomp on {os.uname().machine}")
        for flags in (_NEW_LISTENER | _WAIT_KILLABLE, _NEW_LISTENER):
            handle: int = _libc.syscall(
                ctypes.c_long(number),
                ctypes.c_uint(_SET_MODE_FILTER),
                ctypes.c_uint(flags),
                ctypes.c_void_p(self._address),
            )
            if handle >= 0 or ctypes.get_errno() != errno.EINVAL:
                break
        check(handle, "seccomp with a supervisor")
        return handle


def notified(listener: int) -> bytes | None:
    """Takes a call that waits for its supervisor, a struct seccomp_notif; None: its caller is gone."""
    buffer = bytearray(_NOTIFICATION_BYTES)
    try:
        fcntl.ioctl(listener, _NOTIF_RECV, buffer, True)
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.EINTR):
            raise
        return None
    return bytes(buffer)


def is_waiting(listener: int, number: bytes) -> bool:
    """Says whether the caller behind this notification still waits. If so, the data read about it was its own."""
    return _succeeds(listener, _NOTIF_ID_VALID, number)


def reply(listener: int, answer: bytes) -> None:
    """Lets a caller go on, with a struct seccomp_notif_resp; without effect when it is gone."""
    _succeeds(listener, _NOTIF_SEND, answer)


def _succeeds(listener: int, request: int, data: bytes) -> bool:
    try:
        fcntl.ioctl(listener, request, data)
    except OSError as error:
        if error.errno != errno.ENOENT:
            raise
        return False
    return True


def setns(handle: int, kind: int) -> None:
    check(_libc.setns(ctypes.c_int(handle), ctypes.c_int(kind)), f"setns({kind:#x})")


def flush_c_streams() -> None:
    """Writes what C libraries have printed and not yet written."""
    _libc.fflush(None)


_MADV_COLLAPSE = 25
HUGE = 2 << 20


def collapse(start: int, end: int) -> int:
    """Asks for huge pages in [start, end) (Linux 6.1). Returns how many there are now; 0 where the kernel can't."""
    made = 0
    for address in range((start + HUGE - 1) & -HUGE, end & -HUGE, HUGE):
        result = _libc.madvise(ctypes.c_void_p(address), ctypes.c_size_t(HUGE), ctypes.c_int(_MADV_COLLAPSE))
        made += result == 0
    return made


def map_for_oneself(handle: int, size: int) -> int:
    """Address of a file's memory, to be read; children do not have it, and no descriptor is kept."""
    address = _mmap(None, size, _PROT_READ, _MAP_SHARED, handle, 0)
    if address == _MAP_FAILED:
        raise OSError(ctypes.get_errno(), "mmap")
    pages = ctypes.c_size_t(-(-size // mmap.PAGESIZE) * mmap.PAGESIZE)
    check(_libc.madvise(ctypes.c_void_p(address), pages, ctypes.c_int(mmap.MADV_DONTFORK)), "madvise")
    return int(address)


def trim_heap() -> None:
    """Gives free memory back, so that there is less to be copied by each fork."""
    trim = getattr(_libc, "malloc_trim", None)
    if trim is not None:
        trim(ctypes.c_size_t(0))


def overwrite(start: int, size: int, text: bytes) -> None:
    """Writes `text`, cut to `size`, into this process's own memory, and zeros behind it."""
    ctypes.memset(start, 0, size)
    ctypes.memmove(start, text, min(len(text), size))
