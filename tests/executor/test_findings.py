"""Findings of `fairbox doctor` about machines other than this one: their facts in, causes and remedies out."""

from __future__ import annotations

import errno
from dataclasses import replace

import pytest

from executor_service.guest.walls.landlock import NEWEST
from executor_service.machine.facts import (
    APPARMOR_USERNS,
    CAPABILITIES,
    MAX_USER_NAMESPACES,
    USERNS_CLONE,
    GroupFacts,
    LevelCapabilities,
    Machine,
    Where,
)
from executor_service.machine.findings import Answer, Finding, findings, level_finding
from executor_service.model import IsolationLevel

GIB = 1 << 30
USER = Machine(
    (6, 8),
    "Linux 6.8.0-45-generic",
    lacking=tuple(CAPABILITIES),
    sysctls={MAX_USER_NAMESPACES: 127_000},
    landlock=4,
    groups=GroupFacts(2, "/user.slice/user-1000.slice/session-3.scope", ("memory", "pids")),
    memory_bytes=16 * GIB,
    shm_bytes=8 * GIB,
    python="/usr/bin/python3.12",
)
"""An ordinary user of a usual host."""
DEFAULT_OF_DOCKER = replace(
    USER,
    where=Where.DOCKER,
    seccomp=True,
    apparmor="docker-default",
    covered=("/proc/bus", "/proc/fs"),
    shm_bytes=64 << 20,
    groups=GroupFacts(2, "/", ("cpu", "memory", "pids")),
)
ROOT_OF_DOCKER = replace(DEFAULT_OF_DOCKER, root=True, lacking=("CAP_NET_ADMIN", "CAP_SYS_ADMIN"))
RESTRICTED = replace(DEFAULT_OF_DOCKER, where=Where.KUBERNETES, apparmor="cri-containerd.apparmor.d")


def failed(level: IsolationLevel, number: int) -> LevelCapabilities:
    return LevelCapabilities(level, available=False, reason="the sandbox failed at 'here'", number=number)


@pytest.mark.parametrize(
    ("machine", "number", "cause", "remedy"),
    [
        pytest.param(
            replace(USER, sysctls={MAX_USER_NAMESPACES: 127_000, APPARMOR_USERNS: 1, USERNS_CLONE: 1}),
            errno.EPERM,
            "kernel.apparmor_restrict_unprivileged_userns (1)",
            "sed 's|@PYTHON@|/usr/bin/python3.12|' deploy/apparmor/fairbox | sudo tee /etc/apparmor.d/fairbox",
            id="Ubuntu 24.04",
        ),
        pytest.param(
            replace(USER, sysctls={MAX_USER_NAMESPACES: 0}, selinux=True),
            errno.ENOSPC,
            "user.max_user_namespaces (0) allows no user namespaces",
            "sysctl -w user.max_user_namespaces=15000",
            id="RHEL 9, hardened",
        ),
        pytest.param(
            USER, errno.ENOSPC, "(127000) allows no more", "sysctl -w user.max_user_namespaces=254000", id="all in use"
        ),
        pytest.param(
            replace(USER, sysctls={USERNS_CLONE: 0}),
            errno.EPERM,
            "kernel.unprivileged_userns_clone (0)",
            "sysctl -w kernel.unprivileged_userns_clone=1",
            id="Debian 10",
        ),
        pytest.param(replace(USER, selinux=True), errno.EACCES, "SELinux enforces", "audit2allow", id="SELinux"),
        pytest.param(replace(USER, chroot=True), errno.EPERM, "is a chroot", "pivot_root", id="chroot"),
        pytest.param(
            replace(USER, seccomp=True),
            errno.EPERM,
            "a seccomp filter is on",
            "no SystemCallFilter=",
            id="systemd unit",
        ),
        pytest.param(
            DEFAULT_OF_DOCKER,
            errno.EPERM,
            "a seccomp filter is on this process; the AppArmor profile docker-default is on this process; /proc/bus, ",
            "docker run --security-opt seccomp=unconfined --security-opt apparmor=unconfined "
            "--security-opt systempaths=unconfined",
            id="Docker's defaults",
        ),
        pytest.param(
            replace(DEFAULT_OF_DOCKER, where=Where.PODMAN, apparmor=""),
            errno.EPERM,
            "a seccomp filter",
            "podman run --security-opt seccomp=unconfined --security-opt unmask=ALL",
            id="podman's defaults",
        ),
        pytest.param(
            ROOT_OF_DOCKER,
            errno.EPERM,
            "root needs CAP_NET_ADMIN, CAP_SYS_ADMIN",
            "docker run --cap-add=NET_ADMIN --cap-add=SYS_ADMIN --security-opt seccomp=unconfined "
            "--security-opt apparmor=unconfined",
            id="root with Docker's defaults",
        ),
        pytest.param(
            RESTRICTED, errno.EPERM, "a seccomp filter", "deploy/components/userns", id="Kubernetes restricted"
        ),
        pytest.param(
            replace(RESTRICTED, sysctls={MAX_USER_NAMESPACES: 0}),
            errno.ENOSPC,
            "user.max_user_namespaces (0)",
            "below the container: sysctl -w",
            id="a node's sysctl",
        ),
        pytest.param(
            replace(USER, kernel=(5, 4)), errno.ENOSYS, "mount_setattr", "Linux 5.12 or newer", id="Linux 5.4"
        ),
        pytest.param(USER, errno.EIO, "failed at 'here'", "journalctl -k", id="nothing known"),
    ],
)
def test_what_stands_in_the_way_of_namespaces(machine: Machine, number: int, cause: str, remedy: str) -> None:
    found = level_finding(machine, failed(IsolationLevel.NAMESPACES, number))
    assert (found.question, found.answer) == ("namespaces", Answer.NO)
    assert cause in found.sentence
    assert remedy in found.remedy


LINUX = {(5, 10): 0, (5, 13): 1, (5, 15): 1, (5, 19): 2, (6, 2): 3, (6, 6): 3, (6, 8): 4, (6, 10): 5, (6, 12): 6}
"""Kernels with their version of Landlock."""


@pytest.mark.parametrize(("kernel", "version"), LINUX.items())
def test_landlock_of_each_kernel(kernel: tuple[int, int], version: int) -> None:
    machine = replace(USER, kernel=kernel, landlock=version, landlock_errno=0 if version else errno.ENOSYS)
    finding = ask(machine, "Landlock")
    assert finding.answer is {0: Answer.NO, 6: Answer.YES}.get(version, Answer.PARTLY)
    assert ("signals" in finding.sentence) is (0 < version < 6)
    assert ("truncation" in finding.sentence) is (0 < version < 3)
    if not version:
        level = level_finding(machine, failed(IsolationLevel.LANDLOCK, errno.EOPNOTSUPP))
        assert level.remedy == (
            "Linux 5.13 or newer" if kernel < (5, 13) else "a kernel with CONFIG_SECURITY_LANDLOCK=y"
        )


@pytest.mark.parametrize(
    ("machine", "cause", "remedy"),
    [
        pytest.param(
            replace(USER, landlock=0, landlock_errno=errno.EOPNOTSUPP, lsm="capability,yama,selinux,bpf"),
            "not switched on",
            "lsm=landlock,capability,yama,selinux,bpf",
            id="not in the list of security modules",
        ),
        pytest.param(
            replace(DEFAULT_OF_DOCKER, landlock=0, landlock_errno=errno.ENOSYS),
            "a seccomp filter forbids Landlock",
            "Docker 23",
            id="an old Docker",
        ),
        pytest.param(
            replace(USER, landlock=0, landlock_errno=errno.ENOSYS),
            "built without Landlock",
            "CONFIG_SECURITY_LANDLOCK=y",
            id="not built",
        ),
        pytest.param(
            replace(USER, landlock=NEWEST, root=True, private="/root", lacking=()),
            "may not enter /root",
            "python=/usr/bin/python3",
            id="an interpreter in root's home",
        ),
    ],
)
def test_what_stands_in_the_way_of_landlock(machine: Machine, cause: str, remedy: str) -> None:
    found = level_finding(machine, failed(IsolationLevel.LANDLOCK, errno.EOPNOTSUPP))
    assert cause in found.sentence
    assert remedy in found.remedy


def test_a_filter_that_has_a_supervisor_leaves_no_room_for_another() -> None:
    machine = replace(USER, landlock=5, seccomp=True)
    found = level_finding(machine, failed(IsolationLevel.LANDLOCK, errno.EBUSY))
    assert "leaves signals to a supervisor" in found.sentence
    assert "Linux 6.12 or newer" in found.remedy


DELEGATED = GroupFacts(2, "/user.slice/user@1000.service/a.scope", ("cpu", "memory", "pids"), works=True)


@pytest.mark.parametrize(
    ("machine", "sentence", "remedy"),
    [
        pytest.param(replace(USER, groups=DELEGATED), "by the user's systemd", "", id="delegated"),
        pytest.param(USER, "nobody has delegated /user.slice", "Delegate=yes", id="not delegated"),
        pytest.param(replace(USER, systemd_user=True), "nobody has", "systemd-run --user --scope", id="could be"),
        pytest.param(DEFAULT_OF_DOCKER, "nobody has", "writable-cgroups=true", id="Docker"),
        pytest.param(RESTRICTED, "nobody has", "cgroup_writable", id="Kubernetes"),
        pytest.param(
            replace(USER, groups=GroupFacts(1, "/", ("memory",))),
            "version 1, which is not used",
            "unified",
            id="version 1",
        ),
        pytest.param(
            replace(USER, groups=GroupFacts(wanted=False)), "switches them off", "cgroups=auto", id="none wanted"
        ),
    ],
)
def test_control_groups_hold_limits_or_somebody_looks(machine: Machine, sentence: str, remedy: str) -> None:
    groups = ask(machine, "control groups")
    memory = ask(machine, "namespaces: memory")
    assert sentence in groups.sentence
    assert remedy in groups.remedy
    assert ("every 25 ms" in groups.sentence) is ("every 25 ms" in memory.sentence) is not machine.groups.works
    assert memory.remedy == groups.remedy


def ask(machine: Machine, question: str) -> Finding:
    """The finding about one question where both levels work."""
    levels = [
        LevelCapabilities(level, available=True) for level in (IsolationLevel.NAMESPACES, IsolationLevel.LANDLOCK)
    ]
    (found,) = (finding for finding in findings(machine, levels) if finding.question == question)
    return found


@pytest.mark.parametrize("machine", [USER, DEFAULT_OF_DOCKER, ROOT_OF_DOCKER, RESTRICTED, replace(USER, selinux=True)])
@pytest.mark.parametrize("works", [False, True])
def test_every_no_has_a_remedy_and_no_yes_has_one(machine: Machine, works: bool) -> None:
    levels = [LevelCapabilities(level, works, "it failed", 0 if works else errno.EPERM) for level in IsolationLevel]
    for finding in findings(machine, levels):
        assert bool(finding.remedy) is (finding.answer is not Answer.YES), finding


def test_a_group_without_a_controller_holds_no_limit_of_it() -> None:
    machine = replace(USER, groups=replace(DELEGATED, controllers=("memory",)))
    assert ask(machine, "control groups").answer is Answer.PARTLY
    assert "Delegate=memory pids cpu" in ask(machine, "landlock: processes").remedy
    assert ask(machine, "landlock: memory").answer is Answer.YES


def test_limits_that_only_some_levels_hold() -> None:
    assert ask(USER, "namespaces: disk").answer is Answer.YES
    assert "scratch=" in ask(USER, "landlock: disk").remedy
    assert ask(USER, "namespaces: processes").answer is Answer.YES
    assert ask(USER, "landlock: processes").answer is Answer.PARTLY
    assert ask(replace(USER, root=True), "landlock: processes").answer is Answer.YES
    assert ask(DEFAULT_OF_DOCKER, "/dev/shm").remedy == "docker run --shm-size=1g"


def test_workspaces_and_images_need_a_kernel_with_overlays() -> None:
    assert ask(USER, "workspaces, images").answer is Answer.YES
    without = ask(replace(USER, overlays=False), "workspaces, images")
    assert without.answer is Answer.PARTLY
    assert without.remedy.startswith("modprobe overlay")
    bare = [LevelCapabilities(IsolationLevel.LANDLOCK, available=True)]
    (copied,) = (each for each in findings(USER, bare) if each.question == "workspaces, images")
    assert "no images" in copied.sentence
