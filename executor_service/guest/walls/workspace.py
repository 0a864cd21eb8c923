"""Workspaces inside a box: found below a folder of the host that no program can reach, mounted for one use.

`hide()` is called once, while the root is built: it binds the folder of the host, read-only, at a place that is
covered afterwards, so that only who holds the descriptor can get at it. It must be done inside, because a folder of
another mount namespace can't be a layer here. A use gets a private writable layer above its workspace, in its tmpfs, so
that writes count against its disk limit and go with it; one that only reads gets the folder itself. A branch of a
session gets a copy of its parent's layer, mounted beside it: all of a box see the same mounts, so it can't be in the
same place.

Invariants: a program sees the one workspace that its run names, and no other; what it writes is in that run's layers;
after `clear()` neither a mount nor a folder made for one is left.
"""

from __future__ import annotations

import errno
import os

from executor_service.guest.walls import syscalls as sys_
from executor_service.guest.walls.copies import UNBOUNDED, LayerCopy, open_below

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from executor_service.guest.protocol.spec import WorkspaceOrder

_DIRECTORY = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
BRANCHES = "/branches"
"""Folder of the workspaces of branches."""
_ROOT = 0
"""Number of the layer of the session's first interpreter, or of a program."""


class WorkspaceMounts:
    """Workspaces of one box: the store that `hide()` found, and the workspace of the present use, whose name and mount
    point are all that an init ever learns of a request."""

    def __init__(self, store: int, owner: int) -> None:
        self._store = store
        self._owner = owner
        self.private = -1
        """Descriptor of the tmpfs of the present use."""
        self._order: WorkspaceOrder | None = None
        self._mounts: list[str] = []
        """Mounted, or about to be."""
        self._folders: list[str] = []
        """Made for mount points, the outermost first."""

    def mount(self, order: WorkspaceOrder) -> float:
        """For the present use. CPU seconds of processes that it took: none."""
        self._order = order
        if order["read_only"]:
            self._bind(order)
            return 0.0
        upper = self._make_layer(_ROOT)
        os.chmod(upper, 0o755)  # noqa: S103 - as any folder
        os.chown(upper, self._owner, self._owner)
        targets = [order["target"], *([BRANCHES] if order["branches"] else [])]
        self._folders = _make_folders(targets)
        self._mounts.append(order["target"])
        self._overlay(_ROOT, order["target"])
        if order["branches"]:
            # Programs of an ordinary user's server could write to the folder itself: it is the same user's.
            os.mkdir(".branches", 0o755, dir_fd=self.private)
            self._mounts.append(BRANCHES)
            sys_.mount(f"/proc/self/fd/{self.private}/.branches", BRANCHES, None, sys_.MS_BIND)
            sys_.restrict_mount(BRANCHES, sys_.MOUNT_ATTR_RDONLY | sys_.MOUNT_ATTR_NOSUID, recursive=False)
        return 0.0

    def branch(self, number: int, parent: int) -> int:
        """Mounts the workspace once more, with a copy of the layer `parent`. Returns the process that does it: its exit
        code is 0, or the number of an error. Names of files are its business and not ours."""
        target = f"{BRANCHES}/{number}"
        self._mounts.append(target)
        child = os.fork()
        if child == 0:
            code = errno.EIO
            try:
                os.mkdir(f".branches/{number}", 0o755, dir_fd=self.private)
                upper = self._make_layer(number)
                source = os.open(_layer(parent), _DIRECTORY, dir_fd=self.private)
                LayerCopy(UNBOUNDED, self._owner).run(source, upper)
                os.chmod(upper, os.fstat(source).st_mode & 0o777)
                os.chown(upper, self._owner, self._owner)
                self._overlay(number, target)
                code = 0
            except OSError as error:
                code = error.errno or errno.EIO
            finally:
                os._exit(code)
        return child

    def clear(self) -> None:
        """After the use: everything that used it is dead. Writable layers go with the tmpfs."""
        for target in reversed(self._mounts):
            try:
                sys_.unmount(target)
            except OSError as error:
                if error.errno not in (errno.EINVAL, errno.ENOENT):  # it was not made: who makes it failed, or died
                    raise
        self._mounts = []
        _remove_folders(self._folders)
        self._folders = []
        self._order = None

    def _make_layer(self, number: int) -> str:
        """Folders for a writable layer. Returns a path to the upper one."""
        for name in (_layer(number), _layer(number, "work")):
            os.mkdir(name, dir_fd=self.private)
        return f"/proc/self/fd/{self.private}/{_layer(number)}"

    def _bind(self, order: WorkspaceOrder) -> None:
        """Without a layer: less work than with one."""
        self._folders = _make_folders([order["target"]])
        self._mounts.append(order["target"])
        handle = open_below(self._store, order["path"])
        try:
            sys_.mount(f"/proc/self/fd/{handle}", order["target"], None, sys_.MS_BIND)
        finally:
            os.close(handle)
        restricted = sys_.MOUNT_ATTR_RDONLY | sys_.MOUNT_ATTR_NOSUID | sys_.MOUNT_ATTR_NODEV
        sys_.restrict_mount(order["target"], restricted, recursive=False)

    def _overlay(self, number: int, target: str) -> None:
        assert self._order is not None
        layers = (_layer(number), _layer(number, "work"))
        mount_layers(target, self._store, [self._order["path"]], self.private, layers)


def mount_layers(target: str, store: int, lower: Sequence[str], private: int, layers: Sequence[str]) -> None:
    """Mounts an overlay: folders `lower` of `store`, the highest first, below a writable one of `private`: `layers` are
    that and its work folder. They are named by descriptors, because programs can't reach those folders by a path."""
    handles: list[int] = []
    try:
        for path in lower:
            handles.append(open_below(store, path))  # noqa: PERF401 - closed if one fails
        for name in layers:
            handles.append(os.open(name, _DIRECTORY, dir_fd=private))  # noqa: PERF401 - closed if one fails
        *below, upper, work = (f"/proc/self/fd/{handle}" for handle in handles)
        options = f"lowerdir={':'.join(below)},upperdir={upper},workdir={work}"
        options += ",metacopy=off" if sys_.may_write_trusted(upper) else ",userxattr"
        sys_.mount("overlay", target, "overlay", sys_.MS_NOSUID | sys_.MS_NODEV, options)
    finally:
        for handle in handles:
            os.close(handle)


def hide(store: int, place: str, owner: int) -> int:
    """A descriptor of `store` as it is seen inside the root that is being built.

    `store` is an O_PATH descriptor opened in this mount namespace. `place` must be covered afterwards, by the /proc of
    the box, which no program can take away. What the store holds belongs to the server: if `owner` is not 0, it appears
    as the program's own, if the kernel and the file system can do that.
    """
    if not owner or not _bind_as_owner(store, place, owner):
        sys_.mount(f"/proc/self/fd/{store}", place, None, sys_.MS_BIND | sys_.MS_REC)
    restricted = sys_.MOUNT_ATTR_RDONLY | sys_.MOUNT_ATTR_NOSUID | sys_.MOUNT_ATTR_NODEV
    sys_.restrict_mount(place, restricted, recursive=True)
    return os.open(place, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)


def _layer(number: int, kind: str = "upper") -> str:
    return f".workspace-{kind}-{number}"


def _make_folders(targets: Sequence[str]) -> list[str]:
    """Mount points, in a root that is read-only otherwise. Returns the folders that it made."""
    made: list[str] = []
    sys_.set_read_only("/", read_only=False)
    try:
        for target in targets:
            path = ""
            for part in target.strip("/").split("/"):
                path += f"/{part}"
                try:
                    os.mkdir(path, 0o755)
                    made.append(path)
                except FileExistsError:
                    pass
    finally:
        sys_.set_read_only("/", read_only=True)
    return made


def _remove_folders(folders: list[str]) -> None:
    if not folders:
        return
    sys_.set_read_only("/", read_only=False)
    try:
        for folder in reversed(folders):
            os.rmdir(folder)
    finally:
        sys_.set_read_only("/", read_only=True)


def _bind_as_owner(store: int, target: str, owner: int) -> bool:
    """Binds a folder so that what root owns appears to belong to `owner`. False where that can't be done: file systems
    without idmapped mounts, overlayfs among them. Programs may then write the files, but not change their modes."""
    try:
        namespace = _user_namespace(owner)
        try:
            sys_.bind_mapped(store, target, namespace)
        finally:
            os.close(namespace)
    except OSError:
        return False
    return True


def _user_namespace(owner: int) -> int:
    """A descriptor of a user namespace that maps 0 to `owner`."""
    ready, ready_end = os.pipe2(os.O_CLOEXEC)
    stop, stop_end = os.pipe2(os.O_CLOEXEC)
    child = os.fork()
    if child == 0:
        try:
            os.close(stop_end)
            sys_.unshare(sys_.CLONE_NEWUSER)
            # Its number as this /proc counts, which is that of another pid namespace.
            os.write(ready_end, os.readlink("/proc/self").encode())
            os.read(stop, 1)
        finally:
            os._exit(0)
    try:
        os.close(ready_end)
        number = os.read(ready, 32).decode()
        if not number:
            raise OSError("no user namespace")
        for name in ("uid_map", "gid_map"):
            handle = os.open(f"/proc/{number}/{name}", os.O_WRONLY | os.O_CLOEXEC)
            try:
                os.write(handle, f"0 {owner} 1".encode())
            finally:
                os.close(handle)
        return os.open(f"/proc/{number}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        for end in (ready, stop, stop_end):
            os.close(end)
        os.waitpid(child, 0)
