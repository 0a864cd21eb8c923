"""Judges the facts about a machine: what works there, how well each limit is held, and what changes a "no".

Pure: facts in, findings out. Invariants: the refusal of a server that can't start and the finding about the same level
are one text; each finding that is not "yes" names a command, a profile or a setting, unless nothing is known to help.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from executor_service.model import IsolationLevel
from executor_service.sandbox.inside.landlock import NEEDED_ABI
from executor_service.sandbox.machine import (
    APPARMOR_USERNS,
    MAX_USER_NAMESPACES,
    SYSCTLS,
    USERNS_CLONE,
    LevelFacts,
    Machine,
    Where,
)

_LANDLOCK_LINUX = {1: "5.13", 2: "5.19", 3: "6.2", 4: "6.7", 5: "6.10", 6: "6.12"}
"""The first kernel with each version of Landlock."""
_LANDLOCK_BRINGS = {
    2: "moving files between folders",
    3: "truncation",
    4: "TCP",
    5: "ioctl of devices",
    6: "signals and abstract sockets",
}
"""What each version can restrict, or allow in part, beyond those before."""
_FIRST_LANDLOCK = (5, 13)
_OLDEST_KERNEL = (5, 12)
"""The first with mount_setattr."""
_FOR_NAMESPACES = ("CAP_SYS_ADMIN", "CAP_NET_ADMIN")
"""Capabilities that only level `namespaces` needs."""
_LEAST_MEMORY = 2 << 30
"""Bytes: a program of the default limit and the server with its templates."""
_LEAST_SHM = 1 << 30
"""Bytes: less has been too little for engines and trainers with several processes."""
_EDIT_UNIT = "systemctl edit UNIT, if a unit starts this"
_OPEN_POD = (
    "deploy/components/userns: hostUsers: false, procMount: Unmasked, Unconfined as seccompProfile and appArmorProfile"
)


class Answer(StrEnum):
    """Whether it is as good as it can be."""

    YES = "yes"
    PARTLY = "partly"
    NO = "no"


@dataclass(frozen=True, slots=True)
class Finding:
    """One question about the machine, answered."""

    question: str
    answer: Answer
    sentence: str
    """Why, and with which values."""
    remedy: str = ""
    """What changes the answer: a command, a profile, a setting."""


@dataclass(frozen=True, slots=True)
class _Obstacle:
    """What keeps a level from working."""

    cause: str
    remedy: str
    """Outside of containers; in one for which there is no option: on the machine that it runs on."""
    option: str = ""
    """Of `docker run`; a pod has a setting for each."""
    podman: str = ""
    """Of `podman run`, if it differs."""
    here: bool = False
    """Whether the remedy is one inside of a container too."""


def level_finding(machine: Machine, tried: LevelFacts) -> Finding:
    """Whether a level works; if not, why, and what changes that."""
    if tried.available:
        return Finding(tried.level.value, Answer.YES, "a program ran there and got out by none of its attempts")
    find = _against_namespaces if tried.level is IsolationLevel.NAMESPACES else _against_landlock
    obstacles = list(find(machine, tried))
    if not obstacles:
        hint = f"journalctl -k: it may name who refused it; look at {_shown(machine)}"
        return Finding(tried.level.value, Answer.NO, tried.reason, hint)
    causes = "; ".join(each.cause for each in obstacles)
    return Finding(tried.level.value, Answer.NO, f"{tried.reason}: {causes}", _remedy(machine, obstacles))


def _remedy(machine: Machine, obstacles: Sequence[_Obstacle]) -> str:
    """One command for all that a container's options lift."""
    if machine.where is Where.HOST:
        return "; ".join(each.remedy for each in obstacles)
    podman, remedies = machine.where is Where.PODMAN, []
    if options := [(podman and each.podman) or each.option for each in obstacles if each.option]:
        remedies = [_OPEN_POD if machine.where is Where.KUBERNETES else f"{machine.where} run {' '.join(options)}"]
    for each in obstacles:
        if not each.option:
            remedies.append(each.remedy if each.here else f"below the container: {each.remedy}")
    return "; ".join(remedies)


def _against_namespaces(machine: Machine, tried: LevelFacts) -> Iterator[_Obstacle]:
    if machine.root:
        yield from _without_capabilities(machine, machine.lacking)
    else:
        yield from _against_user_namespaces(machine, tried)
    yield from _filtered(machine, tried)
    yield from _profiled(machine, tried)
    yield from _labelled(machine, tried)
    # Root of the machine's own user namespace may mount a proc wherever it wants.
    if machine.covered and not (machine.root and machine.initial) and tried.number == errno.EPERM:
        covered = machine.covered[:3]
        yield _Obstacle(
            f"{', '.join(covered)} are covered, and nobody may mount another /proc where a part of one is",
            f"umount {' '.join(covered)}",
            "--security-opt systempaths=unconfined",
            "--security-opt unmask=ALL",
        )
    if machine.chroot:
        yield _Obstacle("the root is a chroot and no mount", "podman, systemd-nspawn or pivot_root in place of chroot")
    yield from _against_old_kernel(machine)


def _against_old_kernel(machine: Machine) -> Iterator[_Obstacle]:
    if machine.kernel < _OLDEST_KERNEL:
        yield _Obstacle(f"{machine.release} has no mount_setattr", "Linux 5.12 or newer")


def _against_user_namespaces(machine: Machine, tried: LevelFacts) -> Iterator[_Obstacle]:
    most = machine.sysctls.get(MAX_USER_NAMESPACES, 1)
    if most == 0 or tried.number in (errno.ENOSPC, errno.EUSERS):
        yield _Obstacle(
            f"{MAX_USER_NAMESPACES} ({most}) allows no{' more' if most else ''} user namespaces",
            f"sysctl -w {MAX_USER_NAMESPACES}={max(15_000, 2 * most)}",
        )
    if machine.sysctls.get(USERNS_CLONE) == 0:
        yield _Obstacle(f"{USERNS_CLONE} (0) keeps them for root", f"sysctl -w {USERNS_CLONE}=1")
    if machine.sysctls.get(APPARMOR_USERNS, 0) and not machine.apparmor:
        profile = (
            f"sed 's|@PYTHON@|{machine.python}|' deploy/apparmor/fairbox | sudo tee /etc/apparmor.d/fairbox && "
            "sudo apparmor_parser -r /etc/apparmor.d/fairbox"
        )
        yield _Obstacle(
            f"{APPARMOR_USERNS} (1) takes the capabilities of a user namespace from programs without a profile",
            profile if machine.where is Where.HOST else f"sysctl -w {APPARMOR_USERNS}=0",
        )


def _filtered(machine: Machine, tried: LevelFacts) -> Iterator[_Obstacle]:
    if machine.seccomp and tried.number in (errno.EPERM, errno.ENOSYS):
        yield _Obstacle(
            "a seccomp filter is on this process",
            f"no SystemCallFilter= and RestrictNamespaces=: {_EDIT_UNIT}",
            "--security-opt seccomp=unconfined",
        )


def _profiled(machine: Machine, tried: LevelFacts) -> Iterator[_Obstacle]:
    if machine.apparmor and tried.number in (errno.EPERM, errno.EACCES):
        yield _Obstacle(
            f"the AppArmor profile {machine.apparmor} is on this process",
            f"`userns,` and `mount,` in that profile, or AppArmorProfile=unconfined: {_EDIT_UNIT}",
            "--security-opt apparmor=unconfined",
        )


def _labelled(machine: Machine, tried: LevelFacts) -> Iterator[_Obstacle]:
    if machine.selinux and tried.number == errno.EACCES:
        yield _Obstacle(
            "SELinux enforces",
            "ausearch -m avc -ts recent | audit2allow -M fairbox && semodule -i fairbox.pp",
            "--security-opt label=disable",
        )


def _without_capabilities(machine: Machine, lacking: Sequence[str]) -> Iterator[_Obstacle]:
    if lacking:
        yield _Obstacle(
            f"root needs {', '.join(lacking)} and has {'it' if len(lacking) == 1 else 'them'} not",
            f"setpriv --reuid=USER: as an ordinary user it needs none; or CapabilityBoundingSet=: {_EDIT_UNIT}",
            " ".join(f"--cap-add={name.removeprefix('CAP_')}" for name in lacking),
        )


def _against_landlock(machine: Machine, tried: LevelFacts) -> Iterator[_Obstacle]:
    needed = f"Linux {_LANDLOCK_LINUX[NEEDED_ABI]} or newer"
    if machine.landlock:
        if machine.landlock < NEEDED_ABI:
            yield _Obstacle(f"{machine.release} has Landlock {machine.landlock}, must be {NEEDED_ABI}", needed)
    elif machine.kernel < _FIRST_LANDLOCK:
        yield _Obstacle(f"{machine.release} has no Landlock", needed)
    elif machine.landlock_errno == errno.EOPNOTSUPP:
        others = f",{machine.lsm}" if machine.lsm else ",$(cat /sys/kernel/security/lsm)"
        yield _Obstacle(
            "Landlock is built into this kernel and not switched on",
            f"add landlock to the kernel's command line and boot: lsm=landlock{others}",
        )
    elif machine.seccomp:
        yield _Obstacle(
            "a seccomp filter forbids Landlock",
            "a profile with Landlock's calls, as Docker 23, containerd 1.6 and podman 4.3 bring one",
            here=True,
        )
    else:
        yield _Obstacle("this kernel was built without Landlock", "a kernel with CONFIG_SECURITY_LANDLOCK=y")
    if machine.root:
        if machine.private:
            yield _Obstacle(
                f"programs have uids of their own, which may not enter {machine.private} and so not read "
                f"{machine.python}",
                "python=/usr/bin/python3, or another interpreter that everybody may read",
                here=True,
            )
        yield from _without_capabilities(machine, [name for name in machine.lacking if name not in _FOR_NAMESPACES])


def findings(machine: Machine, levels: Sequence[LevelFacts]) -> list[Finding]:
    """All that the facts say, from the kernel up to the limits of each level that works."""
    untried = LevelFacts(IsolationLevel.NAMESPACES, available=False)
    namespaces = next((facts for facts in levels if facts.level is IsolationLevel.NAMESPACES), untried)
    parts = (
        _of_the_system(machine, namespaces),
        [_landlock(machine), _groups(machine)],
        _of_memory(machine),
        [level_finding(machine, facts) for facts in levels],
        [finding for facts in levels if facts.available for finding in _limits(machine, facts.level)],
    )
    return [finding for part in parts for finding in part]


def _of_the_system(machine: Machine, tried: LevelFacts) -> Iterator[Finding]:
    """`tried` is level `namespaces`: what is in its way is a "no"."""

    def finding(question: str, against: Sequence[_Obstacle], sentence: str) -> Finding:
        if tried.available or not against:
            return Finding(question, Answer.YES, sentence)
        cause = "; ".join(each.cause for each in against)
        return Finding(question, Answer.NO, cause, _remedy(machine, against))

    about_users = [] if machine.root else list(_against_user_namespaces(machine, tried))
    lacking = machine.lacking if machine.root else ()
    yield finding("kernel", list(_against_old_kernel(machine)), machine.release)
    yield finding("user namespaces", about_users, ("root needs none; " if machine.root else "") + _shown(machine))
    yield finding(
        "capabilities",
        list(_without_capabilities(machine, lacking)),
        "root has those it needs" if machine.root else "an ordinary user needs none",
    )
    yield finding("seccomp", list(_filtered(machine, tried)), "a filter" if machine.seccomp else "no filter")
    yield finding("AppArmor", list(_profiled(machine, tried)), machine.apparmor or "no profile confines this process")
    yield finding("SELinux", list(_labelled(machine, tried)), "enforces" if machine.selinux else "off or permissive")


def _shown(machine: Machine) -> str:
    return ", ".join(f"{name} ({machine.sysctls.get(name, 'absent')})" for name in SYSCTLS)


def _landlock(machine: Machine) -> Finding:
    version, newest = machine.landlock, max(_LANDLOCK_LINUX)
    facts = LevelFacts(IsolationLevel.LANDLOCK, available=False)
    if version == 0:
        (first, *_) = _against_landlock(machine, facts)
        return Finding("Landlock", Answer.NO, first.cause, _remedy(machine, [first]))
    lacking = [text for since, text in _LANDLOCK_BRINGS.items() if since > version]
    if not lacking:
        return Finding("Landlock", Answer.YES, f"version {version}")
    return Finding(
        "Landlock",
        Answer.PARTLY,
        f"version {version}, knows nothing of {', '.join(lacking)}",
        f"Linux {_LANDLOCK_LINUX[newest]} or newer",
    )


def _groups(machine: Machine) -> Finding:
    """Whether boxes get control groups, and who delegates them."""
    groups, question = machine.groups, "control groups"
    if groups.works:
        handed = ", ".join(name for name in groups.controllers if name in ("memory", "pids", "cpu", "cpuacct"))
        sentence = f"version {groups.version}, {groups.path} with {handed} by {_giver(machine)}"
        return Finding(question, Answer.YES, sentence)
    watched = "limits are held by looking every 25 ms"
    if groups.version != 2:
        return Finding(
            question,
            Answer.NO,
            f"{f'version {groups.version}' if groups.version else 'none'}, not used: {watched}",
            "systemd.unified_cgroup_hierarchy=1 on the kernel's command line",
        )
    remedies = {
        Where.DOCKER: "docker run --cgroupns=private --security-opt writable-cgroups=true",
        Where.PODMAN: "podman run --cgroupns=private --security-opt unmask=/sys/fs/cgroup",
        Where.KUBERNETES: "cgroup_writable = true for the runtime of containerd 2.1 or newer, as root of the container",
        Where.HOST: "systemd-run --user --scope -p Delegate=yes COMMAND"
        if machine.systemd_user
        else "Delegate=yes in the unit that starts it; loginctl enable-linger USER, for a systemd of one's own",
    }
    return Finding(
        question,
        Answer.NO,
        f"version 2, nobody has delegated {groups.path} to this user: {watched}",
        remedies[machine.where],
    )


def _giver(machine: Machine) -> str:
    """Who delegates control groups."""
    if machine.where is not Where.HOST:
        return "the container's runtime"
    if "/user@" in machine.groups.path:
        return "the user's systemd"
    return "systemd" if machine.groups.path.endswith((".service", ".scope")) else "root"


def _of_memory(machine: Machine) -> Iterator[Finding]:
    enough = machine.memory_bytes >= _LEAST_MEMORY
    yield Finding(
        "memory",
        Answer.YES if enough else Answer.PARTLY,
        f"{machine.memory_bytes >> 20} MiB, swap {machine.swap_bytes >> 20} MiB",
        "" if enough else "limits.memory_bytes and max_concurrent: their product should fit",
    )
    room = machine.shm_bytes >= _LEAST_SHM
    yield Finding(
        "/dev/shm",  # noqa: S108 - its name
        Answer.YES if room else Answer.PARTLY,
        f"{machine.shm_bytes >> 20} MiB, for engines and trainers; programs have their own",
        ""
        if room
        else {
            Where.DOCKER: "docker run --shm-size=1g",
            Where.PODMAN: "podman run --shm-size=1g",
            Where.KUBERNETES: "an emptyDir of medium Memory at /dev/shm",
        }.get(machine.where, "mount -o remount,size=1g /dev/shm"),
    )


def _limits(machine: Machine, level: IsolationLevel) -> Iterator[Finding]:
    """How well each limit is held at a level that works."""
    grouped, remedy = machine.groups.works, _groups(machine).remedy
    bare = level is IsolationLevel.LANDLOCK

    def finding(limit: str, exact: str, otherwise: str = "", change: str = "") -> Finding:
        answer = Answer.PARTLY if otherwise else Answer.YES
        return Finding(f"{level}: {limit}", answer, otherwise or exact, change)

    if grouped:
        for limit in ("memory", "processes", "CPU time"):
            yield finding(limit, "held by the kernel, in a control group")
    else:
        yield finding("memory", "", "looked at every 25 ms, passed by what fits into them", remedy)
        shared = bare and not machine.root
        counted = "counted every 25 ms, with a bound for all programs together" if shared else ""
        yield finding("processes", "held by the kernel, for the uid of the run", counted, remedy if counted else "")
        yield finding("CPU time", "", "that of children that nobody waits for is lost", remedy)
    if bare:
        yield finding(
            "disk", "", "only the size of each file is held", "scratch=FOLDER of a volume with a size for all"
        )
    else:
        yield finding("disk", "held by the kernel: the folders have that size")
    yield finding("files, output, wall time", "held by the kernel and the server")
    yield finding("network", "none to be had" if bare else "a loopback of its own and nothing else")
