"""The private folders of a box: one bounded tmpfs, fresh for each use.

Invariants: /tmp, the work folder and /dev/shm share one size and one count of inodes, so that the three together can't
exceed the disk limit; no use finds anything of another, neither files nor what its folders remember. A use that left
nothing but its program and changed nothing about the folders, which is the usual one, saves the next one the mounts.
What programs see of the host below one of these, as an interpreter in /tmp, is mounted over it again.
"""

from __future__ import annotations

import os

from executor_service.guest.walls import syscalls as sys_
from executor_service.guest.walls.traces import next_inode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from executor_service.guest.protocol.spec import BoxSpec


class PrivateFolders:
    """`prepare()` before a use, `clear()` when everything of it is dead."""

    def __init__(self, spec: BoxSpec, owner: int) -> None:
        self._spec = spec
        self._owner = owner
        self._program = f"{spec['work']}/{spec['main']}"
        self._seen = {path: os.open(path, os.O_PATH | os.O_CLOEXEC) for path in _covered(spec)}
        """Host folders that the private ones cover, each as it is mounted in the box's root."""
        self._shared = -1
        self._facts = sys_.FolderFacts(*private_folders(spec["work"]))
        self._fresh = b""
        """Facts about the folders when they were made; empty: they have to be made."""
        self._inode = 0
        """Number of the newest inode."""

    def prepare(self) -> int:
        """Returns a descriptor of what the folders share, which lives until they are made anew."""
        if not self._fresh:
            self._shared = _mount(self._spec, self._owner)
            for path, handle in self._seen.items():
                os.makedirs(path)
                sys_.mount(f"/proc/self/fd/{handle}", path, None, sys_.MS_BIND | sys_.MS_REC)
            self._fresh = self._facts.look(self._shared)
            self._inode = next_inode(self._spec["work"])
        return self._shared

    def clear(self, changed_ns: int) -> None:
        """`changed_ns`: when the work folder was changed last before the program started. Later, names have come and
        gone in it (before Linux 6.13, only those of another tick are noticed), or it has got other flags."""
        try:
            unchanged = os.stat(self._spec["work"]).st_ctime_ns == changed_ns
            os.unlink(self._program)
            before, self._inode = self._inode, next_inode(self._spec["work"])
            # The program's file, and the one that tells: no other has been made, not even one without a name.
            kept = unchanged and self._inode == before + 2 and self._facts.look(self._shared) == self._fresh
        except OSError:
            kept = False  # the program has taken its own file away, or is in another language
        if not kept:
            os.close(self._shared)
            for target in (*private_folders(self._spec["work"]), self._spec["work"]):
                sys_.unmount(target)
            self._fresh = b""


def resize(work: str, disk_bytes: int, inodes: int) -> None:
    """Other bounds for this use."""
    flags = sys_.MS_REMOUNT | sys_.MS_NOSUID | sys_.MS_NODEV
    sys_.mount(None, work, None, flags, f"size={disk_bytes},nr_inodes={inodes}")


def private_folders(work: str) -> tuple[str, str, str]:
    """The folder of the tmpfs that is mounted over the tmpfs itself comes last."""
    return "/tmp", "/dev/shm", work  # noqa: S108 - the program's own


def _covered(spec: BoxSpec) -> list[str]:
    """Folders of the host below a private one, in the order in which they are to be mounted."""
    below = tuple(f"{folder}/" for folder in private_folders(spec["work"]))
    return [path for path in spec["binds"] if path.startswith(below)]


def _mount(spec: BoxSpec, owner: int) -> int:
    work = spec["work"]
    options = f"size={spec['disk_bytes']},nr_inodes={spec['inodes']},mode=755"
    sys_.mount("tmpfs", work, "tmpfs", sys_.MS_NOSUID | sys_.MS_NODEV, options)
    shared = os.open(work, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    for target, mode in zip(private_folders(work), (0o1777, 0o1777, 0o700), strict=True):
        name = f"{work}/{os.path.basename(target)}"
        os.mkdir(name)
        os.chmod(name, mode)
        os.chown(name, owner, owner)
        sys_.mount(name, target, None, sys_.MS_BIND)
    return shared
