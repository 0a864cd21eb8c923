"""Users of an image: how a worker becomes one, as the image's /etc/passwd and /etc/group say.

Invariants: whoever it becomes owns every file of the image, and is nobody outside; only root has capabilities. Both
files are the image's, so whatever they are is read without waiting and up to a bound, and a line that makes no sense is
as if it were not there. Nothing is imported here, because the image is the root already.
"""

from __future__ import annotations

import os
import stat

from executor_service.guest.walls import syscalls as sys_
from executor_service.guest.walls.confine import write_identity_map
from executor_service.guest.walls.mounts import IMAGE_ROOT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from executor_service.guest.walls.confine import Confinement

_ROOT_OF_IMAGE = (0, 1, 3, 4, 5, 6, 7)
"""Capabilities that root of an image has over the image's own: CHOWN, DAC_OVERRIDE, FOWNER, FSETID, KILL, SETGID and
SETUID of linux/capability.h. Not SYS_CHROOT: it would lead out of the image's root."""
_MOST_BYTES = 1 << 20
"""Bytes of one of the files that are read: those of distributions have a few thousand."""
_HIGHEST = (1 << 32) - 2
"""The last uid, and gid."""


class UnknownUser(Exception):
    """The image does not know the user, or the group; the text says which."""


class User:
    """A user of an image. `name`: empty if it has none."""

    def __init__(self, uid: int, gid: int, name: str, home: str) -> None:
        self.uid, self.gid, self.name, self.home = uid, gid, name, home


def enter_image(confinement: Confinement, user: str) -> User:
    """The worker becomes `user[:group]` of its image, which is its root from then on. UnknownUser."""
    owner = confinement.image_owner
    assert owner is not None
    if confinement.privileged:
        os.setresgid(owner, owner, owner)
        os.setresuid(owner, owner, owner)
    sys_.prctl(sys_.PR_SET_DUMPABLE, 1)
    sys_.unshare(sys_.CLONE_NEWUSER)
    os.chroot(IMAGE_ROOT)  # now: who has another root can't make a namespace
    os.chdir("/")
    found = look_up(user)
    outside = owner if confinement.privileged else 0
    write_identity_map(inside=found.uid, inside_gid=found.gid, outside=outside, proc=confinement.proc)
    os.close(confinement.proc)
    kept = () if found.uid else _ROOT_OF_IMAGE
    sys_.drop_bounding_set(kept)
    sys_.drop_capabilities(kept)
    return found


def look_up(text: str) -> User:
    """The user that `user[:group]` names, each of them a name or a number; empty: root. A number needs no line in the
    files, and has group 0 then. UnknownUser."""
    who, _, group = text.partition(":")
    user = _user(who or "0")
    if group:
        user.gid = _group(group)
    return user


def _user(who: str) -> User:
    number = _number(who)
    for fields in _lines("/etc/passwd", 7):
        uid, gid = _number(fields[2]), _number(fields[3])
        if uid is not None and gid is not None and (fields[0] == who or uid == number):
            return User(uid, gid, fields[0], fields[5])
    if number is None:
        raise UnknownUser(f"no user {who!r} in the image's /etc/passwd")
    return User(number, 0, "" if number else "root", "/" if number else "/root")


def _group(group: str) -> int:
    number = _number(group)
    for fields in _lines("/etc/group", 4):
        gid = _number(fields[2])
        if gid is not None and fields[0] == group:
            return gid
    if number is None:
        raise UnknownUser(f"no group {group!r} in the image's /etc/group")
    return number


def _number(text: str) -> int | None:
    """None: it is none that a user or a group can have."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 10 and int(text) <= _HIGHEST else None


def _lines(path: str, fields: int) -> list[list[str]]:
    """Fields of each line that has so many."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return []
    try:
        data = os.pread(handle, _MOST_BYTES, 0) if stat.S_ISREG(os.fstat(handle).st_mode) else b""
    except OSError:
        return []
    finally:
        os.close(handle)
    lines = [line.split(":") for line in data.decode("utf-8", "replace").splitlines()]
    return [line for line in lines if len(line) == fields]
