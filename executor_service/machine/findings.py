"""Judges the facts about a machine: what works there, how well each limit is held, and what changes a "no".

Pure: facts in, findings out. Invariants: the refusal of a server that can't start and the finding about the same level
are one text; each finding that is not "yes" names a command, a profile or a setting, unless nothing is known to help.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from executor_service.guest.walls.landlock import NEWEST
from executor_service.machine.facts import (
    APPARMOR_USERNS,
    MAX_USER_NAMESPACES,
    SYSCTLS,
    USERNS_CLONE,
    LevelCapabilities,
    Machine,
    Where,
)
from executor_service.model import IsolationLevel

_LANDLOCK_LINUX = {1: "5.13", 2: "5.19", 3: "6.2", 4: "6.7", 5: "6.10", 6: "6.12"}
"""The first kernel with each version of Landlock."""
_LANDLOCK_BRINGS = {
    2: "moving files to another folder, which fails (EXDEV)",
    3: "truncation, which needs an open file (ftruncate)",
    4: "TCP, for which there are no sockets",
    5: "requests to devices, of which programs have five that obey none",
    6: "signals, which the init of the box sends for programs, and abstract sockets, for which there are no sockets",
}
"""Version of Landlock -> what it knows beyond those before, and what stands in for that."""
_FIRST_LANDLOCK = (5, 13)
_OLDEST_KERNEL = (5, 12)
"""The first with mount_setattr."""
_FOR_NAMESPACES = ("CAP_SYS_ADMIN", "CAP_NET_ADMIN")
"""Capabilities that only level `namespaces` needs."""
_LEAST_MEMORY = 2 << 30
"""Bytes: a program of the default limit and the server with its zygotes."""
_LEAST_SHM = 1 << 30
"""Bytes: less has been too little for engines and trainers with several processes."""
_EDIT_UNIT = "systemctl edit UNIT, if a unit starts this"
_OPEN_POD = (
    "deploy/components/userns: hostUsers: false, procMount: Unmasked, Unconfined as seccompProfile and appArmorProfile"
)


_DELEGATED = {
    Where.DOCKER: "docker run --cgroupns=private --security-opt writable-cgroups=true",
    Where.PODMAN: "podman run --cgroupns=private --security-opt unmask=/sys/fs/cgroup",
    Where.KUBERNETES: "cgroup_writable = true for the runtime of containerd 2.1 or newer, and root in the container",
}
_DELEGATE = "Delegate=yes in the unit that starts it; loginctl enable-linger USER, for a systemd of one's own"
_MORE_SHM = {
    Where.HOST: "mount -o remount,size=1g /dev/shm",
    Where.KUBERNETES: "an emptyDir of medium Memory at /dev/shm",
}


class Answer(StrEnum):
    """Answer to a question: yes means as good as it can be."""

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
    """Command, profile or setting that changes the answer."""


@dataclass(frozen=True, slots=True)
class _Obstacle:
    """One cause that keeps a level from working."""

    cause: str
    remedy: str
    """Outside of containers; in one for which there is no option: on the machine that it runs on."""
    option: str = ""
    """Option of `docker run`; a pod has a setting for each."""
    podman: str = ""
    """Option of `podman run`, if it differs."""
    here: bool = False
    """True if the remedy works inside a container too."""


def level_finding(machine: Machine, tried: LevelCapabilities) -> Finding:
    """Says whether a level works; if not, why, and what changes that."""
    if tried.available:
        return Finding(tried.level.value, Answer.YES, "a program ran there and got out by none of its attempts")
    bare = tried.level is IsolationLevel.LANDLOCK
    obstacles = list(_against_landlock(machine, tried) if bare else _against_namespaces(machine, tried))
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


def _against_namespaces(machine: Machine, tried: LevelCapabilities) -> Iterator[_Obstacle]:
    if machine.root:
        yield from _without_capabilities(machine.lacking)
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


def _against_user_namespaces(machine: Machine, tried: LevelCapabilities) -> Iterator[_Obstacle]:
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


def _filtered(machine: Machine, tried: LevelCapabilities) -> Iterator[_Obstacle]:
    if machine.seccomp and tried.number in (errno.EPERM, errno.ENOSYS):
        yield _Obstacle(
            "a seccomp filter is on this process",
            f"no SystemCallFilter= and RestrictNamespaces=: {_EDIT_UNIT}",
            "--security-opt seccomp=unconfined",
        )


def _profiled(machine: Machine, tried: LevelCapabilities) -> Iterator[_Obstacle]:
    if machine.apparmor and tried.number in (errno.EPERM, errno.EACCES):
        yield _Obstacle(
            f"the AppArmor profile {machine.apparmor} is on this process",
            f"`userns,` and `mount,` in that profile, or AppArmorProfile=unconfined: {_EDIT_UNIT}",
            "--security-opt apparmor=unconfined",
        )


def _labelled(machine: Machine, tried: LevelCapabilities) -> Iterator[_Obstacle]:
    if machine.selinux and tried.number == errno.EACCES:
        yield _Obstacle(
            "SELinux enforces",
            "ausearch -m avc -ts recent | audit2allow -M fairbox && semodule -i fairbox.pp",
            "--security-opt label=disable",
        )


def _without_capabilities(lacking: Sequence[str]) -> Iterator[_Obstacle]:
    if lacking:
        yield _Obstacle(
            f"root needs {', '.join(lacking)} and has {'it' if len(lacking) == 1 else 'them'} not",
            f"setpriv --reuid=USER: as an ordinary user it needs none; or CapabilityBoundingSet=: {_EDIT_UNIT}",
            " ".join(f"--cap-add={name.removeprefix('CAP_')}" for name in lacking),
        )


def _against_landlock(machine: Machine, tried: LevelCapabilities) -> Iterator[_Obstacle]:
    if not machine.landlock:
        yield _without_landlock(machine)
    if tried.number == errno.EBUSY:
        yield _Obstacle(
            f"Landlock {machine.landlock} leaves signals to a supervisor; the seccomp filter here has one already, "
            "and may not have two",
            f"a filter without SECCOMP_RET_USER_NOTIF, or Linux {_LANDLOCK_LINUX[NEWEST]} or newer",
            "--security-opt seccomp=FILE, one without SCMP_ACT_NOTIFY",
        )
    if machine.root:
        if machine.private:
            yield _Obstacle(
                f"programs have uids of their own, which may not enter {machine.private} and so not read "
                f"{machine.python}",
                "python=/usr/bin/python3, or another interpreter that everybody may read",
                here=True,
            )
        yield from _without_capabilities([name for name in machine.lacking if name not in _FOR_NAMESPACES])


def _without_landlock(machine: Machine) -> _Obstacle:
    if machine.kernel < _FIRST_LANDLOCK:
        return _Obstacle(f"{machine.release} has no Landlock", f"Linux {_LANDLOCK_LINUX[1]} or newer")
    if machine.landlock_errno == errno.EOPNOTSUPP:
        others = f",{machine.lsm}" if machine.lsm else ",$(cat /sys/kernel/security/lsm)"
        return _Obstacle(
            "Landlock is built into this kernel and not switched on",
            f"add landlock to the kernel's command line and boot: lsm=landlock{others}",
        )
    if machine.seccomp:
        return _Obstacle(
            "a seccomp filter forbids Landlock",
            "a profile with Landlock's calls, as Docker 23, containerd 1.6 and podman 4.3 bring one",
            here=True,
        )
    return _Obstacle("this kernel was built without Landlock", "a kernel with CONFIG_SECURITY_LANDLOCK=y")


def findings(machine: Machine, levels: Sequence[LevelCapabilities]) -> list[Finding]:
    """All that the facts say, from the kernel up to the limits of each level that works."""
    untried = LevelCapabilities(IsolationLevel.NAMESPACES, available=False)
    namespaces = next((facts for facts in levels if facts.level is IsolationLevel.NAMESPACES), untried)
    parts = (
        _of_the_system(machine, namespaces),
        [_landlock(machine), _groups(machine)],
        _of_memory(machine),
        [level_finding(machine, facts) for facts in levels],
        [_mounts(machine, namespaces)],
        [finding for facts in levels if facts.available for finding in _limits(machine, facts.level)],
    )
    return [finding for part in parts for finding in part]


def _of_the_system(machine: Machine, tried: LevelCapabilities) -> Iterator[Finding]:
    """`tried` is level `namespaces`: what is in its way is a "no"."""

    def finding(question: str, against: Sequence[_Obstacle], sentence: str) -> Finding:
        if tried.available or not against:
            return Finding(question, Answer.YES, sentence)
        cause = "; ".join(each.cause for each in against)
        return Finding(question, Answer.NO, cause, _remedy(machine, against))

    about_users = [] if machine.root else list(_against_user_namespaces(machine, tried))
    lacking = list(_without_capabilities(machine.lacking)) if machine.root else []
    yield finding("kernel", list(_against_old_kernel(machine)), machine.release)
    yield finding("user namespaces", about_users, ("root needs none; " if machine.root else "") + _shown(machine))
    yield finding("capabilities", lacking, "root has those it needs" if machine.root else "an ordinary user needs none")
    yield finding("seccomp", list(_filtered(machine, tried)), "a filter" if machine.seccomp else "no filter")
    yield finding("AppArmor", list(_profiled(machine, tried)), machine.apparmor or "no profile confines this process")
    yield finding("SELinux", list(_labelled(machine, tried)), "enforces" if machine.selinux else "off or permissive")


def _shown(machine: Machine) -> str:
    return ", ".join(f"{name} ({machine.sysctls.get(name, 'absent')})" for name in SYSCTLS)


def _landlock(machine: Machine) -> Finding:
    version = machine.landlock
    if version == 0:
        missing = _without_landlock(machine)
        return Finding("Landlock", Answer.NO, missing.cause, _remedy(machine, [missing]))
    lacking = [text for since, text in _LANDLOCK_BRINGS.items() if since > version]
    sentence = f"version {version}" + (f", knows nothing of {'; '.join(lacking)}" if lacking else "")
    return _judged("Landlock", not lacking, sentence, f"Linux {_LANDLOCK_LINUX[NEWEST]} or newer")


def _groups(machine: Machine) -> Finding:
    """Says whether boxes get control groups, and who delegates them."""
    groups, question = machine.groups, "control groups"
    if groups.works:
        handed = [name for name in ("memory", "pids", "cpu") if name in groups.controllers]
        sentence = f"version {groups.version}, {groups.path} with {', '.join(handed)} by {_giver(machine)}"
        remedy = "Delegate=memory pids cpu, in the unit; for users: systemctl edit user@.service"
        return _judged(question, len(handed) == 3, sentence, remedy)
    if not groups.wanted:
        sentence, remedy = "the setting cgroups switches them off", "cgroups=auto"
    elif groups.version != 2:
        sentence = "version 1, which is not used" if groups.version else "none is mounted"
        remedy = "systemd.unified_cgroup_hierarchy=1 on the kernel's command line"
    else:
        sentence = f"version 2, nobody has delegated {groups.path} to this user"
        own = "systemd-run --user --scope -p Delegate=yes COMMAND"
        remedy = _DELEGATED.get(machine.where) or (own if machine.systemd_user else _DELEGATE)
    return Finding(question, Answer.NO, f"{sentence}: limits are held by looking every 25 ms", remedy)


def _giver(machine: Machine) -> str:
    """Who delegates control groups."""
    if machine.where is not Where.HOST:
        return "the container's runtime"
    if "/user@" in machine.groups.path:
        return "the user's systemd"
    return "systemd" if machine.groups.path.endswith((".service", ".scope")) else "root"


def _of_memory(machine: Machine) -> Iterator[Finding]:
    yield _judged(
        "memory",
        machine.memory_bytes >= _LEAST_MEMORY,
        f"{machine.memory_bytes >> 20} MiB, swap {machine.swap_bytes >> 20} MiB",
        "limits.memory_bytes and max_concurrent, so that their product fits",
    )
    yield _judged(
        "/dev/shm",  # noqa: S108 - its name
        machine.shm_bytes >= _LEAST_SHM,
        f"{machine.shm_bytes >> 20} MiB, for engines and trainers; programs have their own",
        _MORE_SHM.get(machine.where) or f"{machine.where} run --shm-size=1g",
    )


def _limits(machine: Machine, level: IsolationLevel) -> Iterator[Finding]:
    """Judges how well each limit is held at a level that works."""
    bare, groups = level is IsolationLevel.LANDLOCK, _groups(machine)
    shared = bare and not machine.root
    for limit, controller, otherwise in (
        ("memory", "memory", "looked at every 25 ms, passed by what fits into them"),
        ("processes", "pids", "counted every 25 ms, with a bound for all programs together" if shared else ""),
        ("CPU time", "", "that of children that nobody waits for is lost"),
    ):
        grouped = machine.groups.works and (not controller or controller in machine.groups.controllers)
        held = f"held by the kernel, {'in a control group' if grouped else 'for the uid of the run'}"
        yield _judged(f"{level}: {limit}", grouped or not otherwise, (not grouped and otherwise) or held, groups.remedy)
    disk = "only the size of each file is held" if bare else "held by the kernel: the folders have that size"
    yield _judged(f"{level}: disk", not bare, disk, "scratch=FOLDER of a volume with a size for all")
    yield Finding(f"{level}: files, output, wall time", Answer.YES, "held by the kernel and the server")
    network = "none to be had" if bare else "a loopback of its own and nothing else"
    yield Finding(f"{level}: network", Answer.YES, network)


def _mounts(machine: Machine, namespaces: LevelCapabilities) -> Finding:
    """Says whether programs run in workspaces and images."""
    question = "workspaces, images"
    if not namespaces.available:
        sentence = "copies of small workspaces, no images: nothing can be mounted"
        return Finding(question, Answer.PARTLY, sentence, "what is said of level namespaces")
    sentence = "mounted, each use with a writable layer of its own"
    lacking = "this kernel has no overlayfs, so that nothing runs in them"
    remedy = "modprobe overlay, or a kernel with CONFIG_OVERLAY_FS"
    return _judged(question, machine.overlays, sentence if machine.overlays else lacking, remedy)


def _judged(question: str, good: bool, sentence: str, remedy: str) -> Finding:
    """ "yes" or "partly"."""
    return Finding(question, Answer.YES if good else Answer.PARTLY, sentence, "" if good else remedy)
