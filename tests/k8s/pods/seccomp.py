"""The filter that `seccompProfile: RuntimeDefault` means on a node, made from the profile that Debian ships for podman.

podman's own profile lets programs make namespaces and mounts; containerd's and CRI-O's do not. This takes those calls
away, so that a container sees what it would see in a cluster. Pure: a profile in, a profile out.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

__all__ = ["DEBIAN", "runtime_default"]

DEBIAN = Path("/usr/share/containers/seccomp.json")
_CAPABLE = frozenset(
    {
        "bpf", "clone3", "fanotify_init", "fsconfig", "fsmount", "fsopen", "fspick", "keyctl", "add_key", "request_key",
        "lookup_dcookie", "mount", "mount_setattr", "move_mount", "open_tree", "perf_event_open", "pivot_root",
        "quotactl", "quotactl_fd", "setdomainname", "sethostname", "setns", "syslog", "umount", "umount2", "unshare",
        "userfaultfd",
    }
)  # fmt: skip
"""Calls that containerd allows with capabilities alone, if at all. No pod here has any."""
_NEW_NAMESPACES = 0x7E020000
"""The flags of clone(2) that make namespaces."""
_EPERM, _ENOSYS = 1, 38


def runtime_default(profile: dict[str, Any]) -> dict[str, Any]:
    """`profile` as a container without capabilities sees containerd's default one."""
    made = copy.deepcopy(profile)
    made["defaultErrnoRet"] = _EPERM
    made.pop("defaultErrno", None)
    rules = []
    for rule in made["syscalls"]:
        names = [name for name in rule.get("names", ()) if name not in _CAPABLE and name != "clone"]
        if names:
            rules.append(rule | {"names": names})
    rules.append(
        {
            "names": ["clone"],
            "action": "SCMP_ACT_ALLOW",
            "args": [{"index": 0, "value": _NEW_NAMESPACES, "valueTwo": 0, "op": "SCMP_CMP_MASKED_EQ"}],
        }
    )
    # C libraries then fall back to clone, whose flags a filter can see.
    rules.append({"names": ["clone3"], "action": "SCMP_ACT_ERRNO", "errnoRet": _ENOSYS})
    made["syscalls"] = rules
    return made
