"""Copies of folders: of a workspace where nothing can be mounted, of a branch's folders, and of its writable layer.

Invariants: the source is only read: nothing of it is linked into the copy, whose files are files of their own (on file
systems that share blocks, copied when they are written); no link is followed, on neither side; bytes and entries are
counted while they are copied, and what is beyond the bound is refused; names are learned by a child that ends. Modes
and times stay, so that git finds nothing changed; set-id bits, pipes, devices and sockets don't come along.
"""

from __future__ import annotations

import errno
import os
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from executor_service.guest.protocol.spec import WorkspaceOrder

UNBOUNDED = 1 << 62
"""For copies that the size of a file system bounds."""
MOST_ENTRIES = 20_000
"""Files and folders of a copy: tenths of a second in memory, some seconds on a slow disk."""
_MOST_DEPTH = 256
"""Folders in each other: two descriptors are open for each."""
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_CHUNK = 1 << 20
_MARKS = [f"{space}.overlay.{name}" for space in ("trusted", "user") for name in ("opaque", "redirect")]
"""Attributes by which overlayfs says what a folder hides, and where it came from."""
_MODE = stat.S_IRWXU | stat.S_IRWXG | stat.S_IRWXO
_READABLE = 0o555
_BLOCK = 4096
_CAN_NOT_SHARE = (errno.EXDEV, errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS, errno.EPERM, errno.EBADF)


def copy_apart(order: WorkspaceOrder, store: str, target: str, owner: int | None) -> float:
    """Copies the workspace into the empty folder `target`, in a child. Returns the CPU seconds that it took.

    OSError with the number of what failed: EFBIG where it is larger than the order allows.
    """
    child = os.fork()
    if child == 0:
        number = errno.EIO
        try:
            top = os.open(store, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            copy = Copy(order["most_bytes"], -1 if owner is None else owner, read_only=order["read_only"])
            copy.run(open_below(top, order["path"]), target)
            if order["read_only"]:
                os.chmod(target, _READABLE)
            number = 0
        except OSError as error:
            number = error.errno or errno.EIO
        finally:
            os._exit(number)
    _, status, used = os.wait4(child, 0)
    number = os.waitstatus_to_exitcode(status)
    if number:
        raise OSError(abs(number), f"the workspace can't be copied: {os.strerror(abs(number))}")
    return used.ru_utime + used.ru_stime


def open_below(store: int, path: str) -> int:
    """The folder, without following any link on the way."""
    flags = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    handle = os.open(".", flags, dir_fd=store)
    for part in path.split("/"):
        if part in ("", "."):
            continue
        if part == "..":
            raise ValueError(path)
        try:
            inner = os.open(part, flags, dir_fd=handle)
        finally:
            os.close(handle)
        handle = inner
    return handle


class Copy:
    """One copy, made in a process that ends with it. `owner`: uid and gid of all that is copied; -1: our own.

    `read_only` takes the permission to write away, for programs that do not go out of their way to write: files and
    folders are the program's own, so it can give itself the permission again. The copy is thrown away in any case.
    """

    def __init__(
        self, most_bytes: int, owner: int, *, read_only: bool = False, most_entries: int = MOST_ENTRIES
    ) -> None:
        self._mode = _READABLE if read_only else _MODE
        self._bytes_left = most_bytes
        self._entries_left = most_entries
        self._owner = owner

    def run(self, source: int, target: str) -> None:
        """Copies what is in the folder `source`, a descriptor, to the empty folder `target`."""
        before = os.umask(0)
        try:
            self._folder(os.open(".", _FOLDER, dir_fd=source), os.open(target, _FOLDER), 1)
        finally:
            os.umask(before)

    def _folder(self, source: int, target: int, depth: int) -> None:
        """Copies what is in `source` to `target`, and closes both."""
        if depth > _MOST_DEPTH:
            raise OSError(errno.ELOOP, "too deep")
        with os.scandir(source) as found:
            entries = [(entry.name, entry.stat(follow_symlinks=False)) for entry in found]
        for name, facts in entries:
            self._entries_left -= 1
            if self._entries_left < 0:
                raise OSError(errno.EFBIG, "too many entries")
            if stat.S_ISDIR(facts.st_mode):
                os.mkdir(name, stat.S_IRWXU, dir_fd=target)
                below = os.open(name, _FOLDER, dir_fd=target)
                inner = os.open(name, _FOLDER, dir_fd=source)
                self._mark(inner, below)
                self._folder(inner, os.dup(below), depth + 1)
                self._finish(below, facts)
            elif stat.S_ISREG(facts.st_mode):
                self._file(source, target, name)
            elif stat.S_ISLNK(facts.st_mode):
                os.symlink(os.readlink(name, dir_fd=source), name, dir_fd=target)
                if self._owner >= 0:
                    os.chown(name, self._owner, self._owner, dir_fd=target, follow_symlinks=False)
                times = (facts.st_atime_ns, facts.st_mtime_ns)
                os.utime(name, ns=times, dir_fd=target, follow_symlinks=False)
            else:
                self._special(target, name, facts)
        os.close(source)
        os.close(target)

    def _mark(self, source: int, target: int) -> None:
        """Copies what a folder has beside its files."""

    def _special(self, target: int, name: str, facts: os.stat_result) -> None:
        """Pipes, devices and sockets."""

    def _file(self, source: int, target: int, name: str) -> None:
        handle = os.open(name, _READ, dir_fd=source)
        facts = os.fstat(handle)
        self._bytes_left -= -(-facts.st_size // _BLOCK) * _BLOCK
        if self._bytes_left < 0:
            raise OSError(errno.EFBIG, "too many bytes")
        copied = os.open(name, _NEW, stat.S_IRUSR | stat.S_IWUSR, dir_fd=target)
        _copy_bytes(handle, copied, facts.st_size)
        os.close(handle)
        self._finish(copied, facts)

    def _finish(self, handle: int, facts: os.stat_result) -> None:
        """Owner, mode and times of what was written."""
        if self._owner >= 0:  # programs may not, without namespaces
            os.fchown(handle, self._owner, self._owner)
        os.fchmod(handle, facts.st_mode & self._mode)
        os.utime(handle, ns=(facts.st_atime_ns, facts.st_mtime_ns))
        os.close(handle)


class LayerCopy(Copy):
    """Copy of the upper layer of an overlay, with what it has removed from the one below."""

    def _mark(self, source: int, target: int) -> None:
        for name in _MARKS:
            try:
                os.setxattr(target, name, os.getxattr(source, name))
            except OSError as error:
                if error.errno not in (errno.ENODATA, errno.EOPNOTSUPP, errno.EPERM):
                    raise

    def _special(self, target: int, name: str, facts: os.stat_result) -> None:
        if stat.S_ISCHR(facts.st_mode) and facts.st_rdev == 0:
            os.mknod(name, stat.S_IFCHR, 0, dir_fd=target)  # says that the name is gone


def _copy_bytes(source: int, target: int, size: int) -> None:
    """No more than `size`, however the file grows meanwhile. Shares blocks where the file system can."""
    left = size
    try:
        while left and (done := os.copy_file_range(source, target, left)):
            left -= done
    except OSError as error:
        if error.errno not in _CAN_NOT_SHARE:
            raise
    while left and (data := os.read(source, min(left, _CHUNK))):
        left -= len(data)
        view = memoryview(data)
        while view:
            view = view[os.write(target, view) :]
