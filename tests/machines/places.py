"""Places to start an executor in: each a command that another one follows, with the level that is to be expected there.

They are made on this machine, by root: other users, mounts of their own, containers of podman over this root folder.
Invariants: nothing of the machine is changed; what a place mounts goes with its process.
"""

from __future__ import annotations

import atexit
import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

NOBODY = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
_CHROOT = """
root=@folder@/root; mkdir -p $root
for each in bin dev etc home lib lib64 opt proc root run sbin sys usr var work tmp; do
    [ -e /$each ] || continue
    mkdir -p $root/$each; mount --rbind /$each $root/$each
done
"""
"""The folder is no mount, only those below are. It is one of `folder()`."""
_ROOTLESS = """
state=@folder@/state; mkdir -p $state; mount -t tmpfs state $state; cd $state
mkdir -p upper/run upper/etc work root home run
touch upper/run/.containerenv upper/etc/hosts upper/etc/resolv.conf
mount -t overlay overlay -o lowerdir=/,upperdir=upper,workdir=work root
echo nobody:100000:65536 > ids; touch /etc/subuid /etc/subgid
mount --bind ids /etc/subuid; mount --bind ids /etc/subgid
chown nobody home run; chmod 700 run; export HOME=$state/home XDG_RUNTIME_DIR=$state/run
"""
"""A user's podman, with a root folder that has the files which podman would make if it could."""
_TAKEN_BY_DOCKER = """
add_key clone clone3 fsconfig fsmount fsopen fspick keyctl mount mount_setattr move_mount name_to_handle_at open_tree
pidfd_getfd pivot_root process_madvise request_key setdomainname sethostname setns syslog umount umount2 unshare
"""
"""Calls that podman's profile allows everybody and Docker's allows nobody without a capability."""
_NEW_NAMESPACES = 0x7E020000
_PODMAN_PROFILE = Path("/usr/share/containers/seccomp.json")
_CONF = """
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
[containers]
default_ulimits = ["nofile=4096:4096", "nproc=4096:4096"]
log_driver = "k8s-file"
"""
"""For machines whose control groups are mounted in both versions, and where limits can't be raised."""
_FOLDER = "@folder@"
"""In words: that of `folder()`."""
_CONTAINER = (
    *("podman", "run", "--rm", "--read-only", "--read-only-tmpfs=false", "--tmpfs=/tmp:rw,mode=1777,notmpcopyup"),
    *("--network=host", "--workdir=/"),
)
_UNTIL_IT_ENDS = """
unshare --pid --fork --mount-proc "$@" & outer=$!
trap 'pkill -TERM -P $outer' TERM
ended=129
while [ $ended -gt 128 ] && kill -0 $outer 2>/dev/null; do wait $outer && ended=0 || ended=$?; done
exit $ended
"""
"""A user's podman leaves a process behind, which holds its mounts: it goes with this namespace of processes."""


@dataclass(frozen=True, slots=True)
class Place:
    """One of them."""

    name: str
    what: str
    """In a few words, for the table."""
    level: str
    """`namespaces` or `landlock`; empty: no executor starts."""
    words: tuple[str, ...] = ()
    """Come before the command."""
    user: bool = False
    """True if the server is an ordinary user, as far as this machine can tell."""
    version: int = 0
    """Version of Landlock, if an older one is to be used; 0: the kernel's."""
    container: bool = False
    said: str = ""
    """Part of the sentence that somebody gets for whom no executor starts."""

    def prefix(self, env: Mapping[str, str]) -> list[str]:
        """The words, with `env` for a container, which has nothing of the caller's."""
        if not self.container:
            return [word.replace(_FOLDER, str(folder())) for word in self.words]
        at = self.words.index("run") + 1
        given = [f"--env={name}={value}" for name, value in env.items()]
        return [word.replace(_FOLDER, str(folder())) for word in (*self.words[:at], *given, *self.words[at:])]

    def lacks(self) -> str:
        """Reason why it can't be made here; empty: it can."""
        if os.geteuid() != 0:
            return "places are made by root"
        if self.container and shutil.which("podman") is None:
            return "there is no podman (Debian: podman, runc, uidmap, slirp4netns)"
        return ""


@cache
def folder() -> Path:
    """Folder of files that containers are started with. It goes with this process."""
    # Not in /tmp, which containers have another of.
    made = Path(tempfile.mkdtemp(prefix="fairbox-machines-", dir="/var/tmp"))
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    made.chmod(0o755)
    (made / "containers.conf").write_text(_CONF)
    if _PODMAN_PROFILE.exists():
        (made / "docker.json").write_text(json.dumps(_as_docker(json.loads(_PODMAN_PROFILE.read_text()))))
    return made


def _as_docker(profile: dict[str, Any]) -> dict[str, Any]:
    """podman's seccomp profile, made as strict as Docker's: no namespaces, no mounts, no keys, EPERM for the rest."""
    rules, taken = [], set(_TAKEN_BY_DOCKER.split())
    for rule in profile["syscalls"]:
        free = rule["action"] == "SCMP_ACT_ALLOW" and not (rule.get("includes") or {}).get("caps")
        names = [name for name in rule["names"] if not free or name not in taken]
        if names:
            rules.append({**rule, "names": names})
    same = {"index": 0, "value": _NEW_NAMESPACES, "valueTwo": 0, "op": "SCMP_CMP_MASKED_EQ"}
    rules.append({"names": ["clone"], "action": "SCMP_ACT_ALLOW", "args": [same]})
    rules.append({"names": ["clone3"], "action": "SCMP_ACT_ERRNO", "errnoRet": 38, "args": []})
    return {**profile, "defaultErrno": "EPERM", "defaultErrnoRet": 1, "syscalls": rules}


def _mounted(script: str, *after: str, start: str = 'exec "$@"') -> tuple[str, ...]:
    """In a mount namespace of its own, after `script`."""
    return ("unshare", "--mount", "sh", "-ec", f"mount --make-rprivate /\n{script}\n{start}", "sh", *after)


def _podman(*options: str, user: str = "10001:10001", profile: str = "docker") -> tuple[str, ...]:
    seccomp = (f"--security-opt=seccomp={_FOLDER}/docker.json",) if profile == "docker" else ()
    return (*_CONTAINER, *seccomp, f"--user={user}", *options, "--rootfs", "/:O")


def _rootless(*options: str) -> tuple[str, ...]:
    root = f"{_FOLDER}/state/root"
    return _mounted(_ROOTLESS, *NOBODY, *_CONTAINER, *options, "--rootfs", root, start=_UNTIL_IT_ENDS)


def places() -> list[Place]:
    """All of them."""
    return [*_users(), *_containers()]


def _users() -> list[Place]:
    return [
        Place("root", "root", "namespaces"),
        Place("user", "an ordinary user", "namespaces", NOBODY, user=True),
        Place("one-cpu", "an ordinary user, one processor", "namespaces", ("taskset", "-c", "0", *NOBODY), user=True),
        Place(
            "few-files",
            "an ordinary user, `ulimit -n 1024`",
            "namespaces",
            ("sh", "-c", 'ulimit -n 1024; exec "$@"', "sh", *NOBODY),
            user=True,
        ),
        Place(
            "noexec",
            "an ordinary user, /tmp mounted noexec",
            "namespaces",
            _mounted("mount -t tmpfs -o noexec,mode=1777 tmp /tmp", *NOBODY),
            user=True,
        ),
        Place(
            "small-shm",
            "an ordinary user, 64 MB of /dev/shm",
            "namespaces",
            _mounted("mount -t tmpfs -o size=64m,mode=1777 shm /dev/shm", *NOBODY),
            user=True,
        ),
        Place(
            "full-shm",
            "an ordinary user, /dev/shm full",
            "namespaces",
            _mounted("mount -t tmpfs -o size=64k,mode=1777 shm /dev/shm; head -c 64k /dev/zero >/dev/shm/x", *NOBODY),
            user=True,
        ),
        Place(
            "no-groups",
            "root, /sys without control groups",
            "namespaces",
            _mounted("mount -t tmpfs nothing /sys/fs/cgroup"),
        ),
        Place(
            "no-home",
            "an ordinary user whose home is closed to it",
            "namespaces",
            ("env", "HOME=/root", *NOBODY),
            user=True,
        ),
        Place(
            "chroot",
            "root in a chroot whose root is no mount",
            "landlock",
            _mounted(_CHROOT, start='exec chroot $root "$@"'),
        ),
        Place("landlock-1", "an ordinary user, Linux 5.13 to 5.18", "landlock", NOBODY, user=True, version=1),
        Place("landlock-3", "an ordinary user, Linux 6.2 to 6.6", "landlock", NOBODY, user=True, version=3),
        Place("landlock-3-root", "root, Linux 6.2 to 6.6", "landlock", version=3),
    ]


def _containers() -> list[Place]:
    restricted = ("--cap-drop=ALL", "--security-opt=no-new-privileges")
    return [
        Place("docker-root", "`docker run`, root, read-only", "landlock", _podman(user="0:0"), container=True),
        Place("docker", "`docker run`, uid 10001, read-only", "landlock", _podman(), user=True, container=True),
        Place(
            "docker-old",
            "the same on Linux 5.13 to 5.18",
            "landlock",
            _podman(),
            user=True,
            version=1,
            container=True,
        ),
        Place(
            "restricted",
            "a pod of the level restricted on Linux 5.13 to 5.18",
            "landlock",
            _podman(*restricted),
            user=True,
            version=1,
            container=True,
        ),
        Place(
            "podman",
            "`podman run`, its own profile, uid 10001, read-only",
            "landlock",
            _podman(profile="podman"),
            user=True,
            container=True,
        ),
        Place("rootless", "a user's `podman run`, root inside, read-only", "landlock", _rootless(), container=True),
        Place(
            "rootless-user",
            "a user's `podman run`, uid 10001 inside, read-only",
            "landlock",
            _rootless("--user=10001:10001"),
            user=True,
            container=True,
        ),
        Place(
            "podman-open",
            "`podman run` without a profile, /proc unmasked, uid 10001",
            "namespaces",
            _podman("--security-opt=seccomp=unconfined", "--security-opt=unmask=ALL", profile=""),
            user=True,
            container=True,
        ),
        Place(
            "docker-strict",
            "`docker run` with `min_isolation=namespaces`",
            "",
            _podman(),
            user=True,
            container=True,
            said="--security-opt seccomp=unconfined",
        ),
    ]
