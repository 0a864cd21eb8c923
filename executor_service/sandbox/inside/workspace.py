"""Workspaces inside a box: found below folders of the host that no program can reach, mounted for one use.

`hide()` is called once, while the root is built: it binds the folders of the host, read-only, at a place that is
covered afterwards, so that only who holds the descriptors can get at them. It must be done inside, because a folder of
another mount namespace can't be a layer here. `mount()` puts a private writable layer above a workspace, in the tmpfs
of the use, so that writes count against its disk limit and go with it.

Invariants: a program sees the one workspace that its run names, and no other; what it writes is in its own layer; after
`unmount()` neither the mount nor a folder made for it is left.
"""

from __future__ import annotations

import os

from executor_service.sandbox.inside import syscalls as sys_

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from executor_service.sandbox.inside.spec import WorkspaceOrder

_PLACE = "/proc"
"""Covered by the /proc of the box when the root is complete; no program can take that away."""
_LAYERS = ("upper", "work")


class Mounted:
    """What `unmount()` has to undo."""

    __slots__ = ("folders", "target")

    def __init__(self, target: str, folders: list[str]) -> None:
        self.target = target
        self.folders = folders
        """Made for the mount point, the outermost first."""


class Workspaces:
    """Of one box: the stores that `hide()` found, and the workspace of the present use. Its name and its mount point
    are all that an init ever learns of a request."""

    def __init__(self, stores: list[int], owner: int) -> None:
        self._stores = stores
        self._owner = owner
        self.private = -1
        """Descriptor of the tmpfs of the present use."""
        self._mounted: Mounted | None = None

    def mount(self, order: WorkspaceOrder) -> None:
        """For the present use."""
        store = self._stores[order["store"]]
        self._mounted = mount(store, order["path"], order["target"], self.private, self._owner)

    def clear(self) -> None:
        """After the use."""
        if self._mounted is not None:
            unmount(self._mounted)
            self._mounted = None


def hide(stores: Sequence[int], root: str, owner: int) -> list[int]:
    """Descriptors of `stores` as they are seen inside the root that is being built at `root`.

    `stores` are O_PATH descriptors opened in this mount namespace; /proc must be mounted afterwards. The first holds
    workspaces that belong to the server: where `owner` is not 0, they appear as the program's own, if the kernel and
    the file system can do that.
    """
    place = root + _PLACE
    os.mkdir(place)
    found = []
    for number, store in enumerate(stores):
        folder = f"{place}/{number}"
        os.mkdir(folder)
        if number or not owner or not _bind_as_owner(store, folder, owner):
            sys_.mount(f"/proc/self/fd/{store}", folder, None, sys_.MS_BIND | sys_.MS_REC)
        restricted = sys_.MOUNT_ATTR_RDONLY | sys_.MOUNT_ATTR_NOSUID | sys_.MOUNT_ATTR_NODEV
        sys_.restrict_mount(folder, restricted, recursive=True)
        found.append(os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC))
    return found


def mount(store: int, path: str, target: str, private: int, owner: int) -> Mounted:
    """Mounts the folder `path` below the descriptor `store` at `target`; `private` is the tmpfs of the use.

    `owner` owns the top folder. Layers are named by descriptors, because programs can't reach those folders by a path.
    """
    handles = [_open_below(store, path)]
    mounted = Mounted(target, [])
    try:
        for name in _LAYERS:
            os.mkdir(f".workspace-{name}", dir_fd=private)
            flags = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            handles.append(os.open(f".workspace-{name}", flags, dir_fd=private))
        lower, upper, work = (f"/proc/self/fd/{handle}" for handle in handles)
        os.chmod(upper, 0o755)  # noqa: S103 - as any folder
        os.chown(upper, owner, owner)
        options = f"lowerdir={lower},upperdir={upper},workdir={work}"
        mounted.folders = _make_folders(target)
        if not _may_write_trusted(upper):
            options += ",userxattr"
        sys_.mount("overlay", target, "overlay", sys_.MS_NOSUID | sys_.MS_NODEV, options)
    except BaseException:
        _remove_folders(mounted.folders)
        raise
    finally:
        for handle in handles:
            os.close(handle)
    return mounted


def unmount(mounted: Mounted) -> None:
    """Everything that used it is dead. Its writable layer goes with the tmpfs of the use."""
    sys_.unmount(mounted.target)
    _remove_folders(mounted.folders)


def _may_write_trusted(folder: str) -> bool:
    """Whether the layers' own records can be kept where they are by default. In a user namespace they can't, and
    overlayfs would go on without them, and fail when a folder is removed."""
    try:
        os.setxattr(folder, "trusted.fairbox", b"")
    except OSError:
        return False
    os.removexattr(folder, "trusted.fairbox")
    return True


def _open_below(store: int, path: str) -> int:
    """The folder, without following any link on the way."""
    flags = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    handle = os.open(".", flags, dir_fd=store)
    for part in path.split("/"):
        if part in ("", "."):
            continue
        if part == "..":
            raise ValueError(path)
        inner = os.open(part, flags, dir_fd=handle)
        os.close(handle)
        handle = inner
    return handle


def _make_folders(target: str) -> list[str]:
    """The mount point, in a root that is read-only otherwise. Returns the folders that it made."""
    made: list[str] = []
    sys_.set_read_only("/", read_only=False)
    try:
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
