"""The file system that a program sees: a minimal read-only root. Its writable folders are those of `private`.

Invariants: nothing of the host is writable; only what is listed is visible.
"""

from __future__ import annotations

import os

from executor_service.guest.walls import syscalls as sys_
from executor_service.guest.walls import workspace
from executor_service.guest.walls.private import private_folders

TYPE_CHECKING = False
if TYPE_CHECKING:
    from executor_service.guest.protocol.spec import BoxSpec

_STAGING = "/tmp"  # noqa: S108 - a folder that exists everywhere; covered only in our own mount namespace
IMAGE_ROOT = "/image"
"""Place at which the root of an image is mounted for a use."""
_PROC_FLAGS = sys_.MS_NOSUID | sys_.MS_NODEV | sys_.MS_NOEXEC
_DEVICES = ("null", "zero", "full", "random", "urandom")
_DEVICE_LINKS = (("fd", "/proc/self/fd"), ("stdin", "fd/0"), ("stdout", "fd/1"), ("stderr", "fd/2"))


def open_settings() -> int:
    """In a fresh mount namespace: a descriptor of /proc/sys as it can be written, where somebody may: that of a
    container is read-only, but root may mount another."""
    sys_.mount(None, "/", None, sys_.MS_REC | sys_.MS_PRIVATE)
    try:
        sys_.mount("proc", "/proc", "proc", _PROC_FLAGS)
    except OSError:
        return os.open("/proc/sys", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return os.open("/proc/sys", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    finally:
        sys_.unmount("/proc")


def build_root(spec: BoxSpec, owner: int) -> tuple[int, int, int]:
    """Builds the root after `open_settings()`. Returns descriptors of the store, or -1, see `workspace.hide()`; of the
    folder of images, or -1; and of a proc that can be written, while programs can't write to theirs: it would let them
    off when memory runs out."""
    # Opened before the staging folder is covered, so that sources may lie below it.
    sources = {path: os.open(path, os.O_PATH | os.O_CLOEXEC) for path in spec["binds"]}
    image = spec["image"]
    store, images = (
        os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC) if path else -1
        for path in (spec["store"], image["folder"] if image else "")
    )
    devices = {name: os.open(f"/dev/{name}", os.O_PATH | os.O_CLOEXEC) for name in _DEVICES}
    sys_.mount("tmpfs", _STAGING, "tmpfs", sys_.MS_NOSUID, "size=8m,nr_inodes=4096,mode=755")
    for folder in private_folders(spec["work"]):
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
    if image:
        os.mkdir(f"{_STAGING}/dev/pts")
        os.symlink("pts/ptmx", f"{_STAGING}/dev/ptmx")
    os.mkdir(f"{_STAGING}/proc")
    hidden = workspace.hide(store, f"{_STAGING}/proc", owner) if store >= 0 else -1
    layers = workspace.hide(images, f"{_STAGING}/proc", 0) if images >= 0 else -1
    if image:
        os.mkdir(_STAGING + IMAGE_ROOT)
    sys_.mount("proc", f"{_STAGING}/proc", "proc", _PROC_FLAGS, "subset=pid")
    proc = os.open(f"{_STAGING}/proc", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    sys_.mount("proc", f"{_STAGING}/proc", "proc", _PROC_FLAGS | sys_.MS_RDONLY, "subset=pid")
    sys_.restrict_mount(_STAGING, sys_.MOUNT_ATTR_RDONLY | sys_.MOUNT_ATTR_NOSUID, recursive=False)
    for handle in (*sources.values(), *devices.values()):
        os.close(handle)
    for handle in (store, images):
        if handle >= 0:
            os.close(handle)
    return hidden, layers, proc


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
