"""The file system that a program sees: a minimal read-only root, and one private, bounded tmpfs for each use.

Invariants: nothing of the host is writable; only what is listed is visible; /tmp, the work folder and /dev/shm share
one size and one count of inodes, so that the three together can't exceed the disk limit; no use sees another's.
"""

from __future__ import annotations

import os

from executor_service.sandbox.inside import syscalls as sys_
from executor_service.sandbox.inside import workspace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from executor_service.sandbox.inside.spec import BoxSpec

_STAGING = "/tmp"  # noqa: S108 - a folder that exists everywhere; covered only in our own mount namespace
_DEVICES = ("null", "zero", "full", "random", "urandom")
_DEVICE_LINKS = (("fd", "/proc/self/fd"), ("stdin", "fd/0"), ("stdout", "fd/1"), ("stderr", "fd/2"))


def build_root(spec: BoxSpec, owner: int) -> list[int]:
    """Builds the root in a fresh mount namespace. Returns descriptors of the stores; see `workspace.hide()`."""
    sys_.mount(None, "/", None, sys_.MS_REC | sys_.MS_PRIVATE)
    # Opened before the staging folder is covered, so that sources may lie below it.
    sources = {path: os.open(path, os.O_PATH | os.O_CLOEXEC) for path in spec["binds"]}
    stores = [os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC) for path in spec["stores"]]
    devices = {name: os.open(f"/dev/{name}", os.O_PATH | os.O_CLOEXEC) for name in _DEVICES}
    sys_.mount("tmpfs", _STAGING, "tmpfs", sys_.MS_NOSUID, "size=8m,nr_inodes=4096,mode=755")
    for folder in _private(spec["work"]):
        os.makedirs(_STAGING + folder)
    for path, handle in sources.items():
        _bind(handle, _STAGING + path)
    for link, target in spec["links"]:
        os.makedirs(os.path.dirname(_STAGING + link), exist_ok=True)
        os.symlink(target, _STAGING + link)
    for path, text in spec["etc"].items():
        os.makedirs(os.path.dirname(_STAGING + path), exist_ok=True)
        with open(_STAGING + path, "x", encoding="utf-8") as file:
            file.write(text)
    _devices(devices)
    hidden = workspace.hide(stores, _STAGING, owner)
    flags = sys_.MS_NOSUID | sys_.MS_NODEV | sys_.MS_NOEXEC
    sys_.mount("proc", f"{_STAGING}/proc", "proc", flags, "subset=pid")
    sys_.restrict_mount(_STAGING, sys_.MOUNT_ATTR_RDONLY | sys_.MOUNT_ATTR_NOSUID, recursive=False)
    for handle in (*sources.values(), *devices.values(), *stores):
        os.close(handle)
    return hidden


def enter_root() -> None:
    """Makes the new root the only one. Where pivot_root is filtered, as in most containers, the root is moved."""
    os.chdir(_STAGING)
    try:
        sys_.pivot_root(".", ".")
    except PermissionError:
        sys_.mount(".", "/", None, sys_.MS_MOVE)
        os.chroot(".")
    else:
        sys_.unmount(".")
    os.chdir("/")


def _bind(handle: int, target: str) -> None:
    if os.path.isdir(f"/proc/self/fd/{handle}"):
        os.makedirs(target, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o644))
    sys_.mount(f"/proc/self/fd/{handle}", target, None, sys_.MS_BIND | sys_.MS_REC)
    restricted = sys_.MOUNT_ATTR_RDONLY | sys_.MOUNT_ATTR_NOSUID | sys_.MOUNT_ATTR_NODEV
    sys_.restrict_mount(target, restricted, recursive=True)


def _devices(handles: dict[str, int]) -> None:
    for name, handle in handles.items():
        target = f"{_STAGING}/dev/{name}"
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o666))
        sys_.mount(f"/proc/self/fd/{handle}", target, None, sys_.MS_BIND)
        sys_.restrict_mount(target, sys_.MOUNT_ATTR_NOSUID | sys_.MOUNT_ATTR_NOEXEC, recursive=False)
    for name, target in _DEVICE_LINKS:
        os.symlink(target, f"{_STAGING}/dev/{name}")


def mount_private(spec: BoxSpec, owner: int) -> int:
    """Fresh private folders, which belong to `owner`. Returns a descriptor of what they share."""
    work = spec["work"]
    options = f"size={spec['disk_bytes']},nr_inodes={spec['inodes']},mode=755"
    sys_.mount("tmpfs", work, "tmpfs", sys_.MS_NOSUID | sys_.MS_NODEV, options)
    shared = os.open(work, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    # The folder of the tmpfs that is mounted over the tmpfs itself comes last.
    for target, mode in zip(_private(work), (0o1777, 0o1777, 0o700), strict=True):
        name = f"{work}/{os.path.basename(target)}"
        os.mkdir(name)
        os.chmod(name, mode)
        os.chown(name, owner, owner)
        sys_.mount(name, target, None, sys_.MS_BIND)
    return shared


def resize_private(work: str, disk_bytes: int, inodes: int) -> None:
    """Other bounds for the private folders of this use."""
    flags = sys_.MS_REMOUNT | sys_.MS_NOSUID | sys_.MS_NODEV
    sys_.mount(None, work, None, flags, f"size={disk_bytes},nr_inodes={inodes}")


def unmount_private(spec: BoxSpec) -> None:
    work = spec["work"]
    for target in (*_private(work), work):
        sys_.unmount(target)


def _private(work: str) -> tuple[str, str, str]:
    return "/tmp", "/dev/shm", work  # noqa: S108 - the program's own
