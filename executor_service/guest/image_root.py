"""The root that programs of an image see: its layers below a private writable one, made for one use.

The init stays in its own root; the worker enters this one before it is confined. Layers are found as workspaces are,
below a folder of the host that no program can reach (see `workspace.hide`).

Invariants: what a program writes is in the box's tmpfs, counts against its disk limit and goes with the use; the layers
are only read; after `clear()` no mount of the use is left. Of the private folders /dev/shm and the work folder are
mounted; /tmp is a folder of the image as any other, so that a snapshot has it. Its terminals are its own.
"""

from __future__ import annotations

import os
import stat

from executor_service.guest.walls import syscalls as sys_
from executor_service.guest.walls.mounts import IMAGE_ROOT
from executor_service.guest.walls.workspace import mount_layers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from executor_service.guest.protocol.spec import BoxSpec

_LAYERS = (".image-upper", ".image-work")
_DIRECTORY = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_TERMINALS = 12
"""Pseudo-terminals that a use may have at once. The kernel has 3,072 for all but the host itself: as many for each of
256 sessions."""
_HOSTS = "127.0.0.1 localhost sandbox\n::1 localhost\n"


class ImageRoot:
    """`mount()` before a use, `clear()` when everything of it is dead."""

    def __init__(self, spec: BoxSpec, layers: int, owner: int) -> None:
        """`layers`: descriptor of the folder that all layers are below; `owner`: uid of what is in them, as the init
        sees it."""
        self._image = spec["image"]
        self._work = spec["work"]
        self._layers = layers
        self._owner = owner
        self._mounted = False
        self._private = -1

    def mount(self, private: int) -> None:
        """`private`: descriptor of the tmpfs of the use."""
        assert self._image is not None
        for name in _LAYERS:
            os.mkdir(name, 0o755, dir_fd=private)
            os.chown(name, self._owner, self._owner, dir_fd=private)
        mount_layers(IMAGE_ROOT, self._layers, self._image["layers"], private, _LAYERS)
        self._mounted = True
        self._private = private
        for folder in ("/proc", "/dev", self._work):
            sys_.mount(folder, self._folder(folder), None, sys_.MS_BIND | sys_.MS_REC)
        flags = sys_.MS_NOSUID | sys_.MS_NOEXEC
        sys_.mount("devpts", f"{IMAGE_ROOT}/dev/pts", "devpts", flags, f"newinstance,ptmxmode=666,max={_TERMINALS}")
        self._make_temporary()
        self._write_hosts()

    def writable(self) -> int:
        """A descriptor of the writable layer."""
        return os.open(_LAYERS[0], _DIRECTORY, dir_fd=self._private)

    def clear(self) -> None:
        """Everything that used it is dead."""
        if self._mounted:
            sys_.unmount(IMAGE_ROOT)  # with all that is mounted below
            self._mounted = False

    def _folder(self, path: str) -> str:
        """The mount point for one of ours, made if the image has none: never through a link."""
        target = IMAGE_ROOT
        for part in path.strip("/").split("/"):
            target += f"/{part}"
            try:
                if not stat.S_ISDIR(os.lstat(target).st_mode):
                    os.unlink(target)
                    os.mkdir(target, 0o755)
            except FileNotFoundError:
                os.mkdir(target, 0o755)
        return target

    def _make_temporary(self) -> None:
        """Images made from nothing have none."""
        if not os.path.lexists(path := f"{IMAGE_ROOT}/tmp"):  # noqa: S108
            os.mkdir(path)
            os.chmod(path, 0o1777)  # noqa: S103 - as everywhere
            os.chown(path, self._owner, self._owner)

    def _write_hosts(self) -> None:
        """Images have none, because who runs them makes one."""
        folder = f"{IMAGE_ROOT}/etc"
        try:
            if not stat.S_ISDIR(os.lstat(folder).st_mode):
                return
            if os.path.lexists(f"{folder}/hosts"):
                os.unlink(f"{folder}/hosts")
        except OSError:
            return  # it has no such folder, or something else there
        handle = os.open(f"{folder}/hosts", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        os.write(handle, _HOSTS.encode())
        os.fchown(handle, self._owner, self._owner)
        os.close(handle)
