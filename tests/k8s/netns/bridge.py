"""A network of its own for the tiers: a bridge on this machine, and a pair of devices into each network namespace.

Nothing of it leaves the machine: the bridge has no way out, and no rule of the machine's own firewall is touched. All
names begin with the prefix that it was given, and go when the block is left.
"""

from __future__ import annotations

import subprocess
from types import TracebackType

_LENGTH = 15
"""The kernel's limit for names of devices."""
_WITHIN_S = 60.0


class Bridge:
    """`with Bridge("fbxn", "10.232.8.")`: the bridge is `.1`, tiers have addresses from `.10` on."""

    def __init__(self, prefix: str, net: str) -> None:
        self.name = f"{prefix}0"
        self._prefix, self._net = prefix, net
        self._last = 9
        assert len(f"{prefix}255p") <= _LENGTH, "a name that long is no device's"

    def __enter__(self) -> Bridge:
        self._remove()  # of a run that was killed
        _run("ip", "link", "add", self.name, "type", "bridge")
        try:
            _run("ip", "addr", "add", f"{self._net}1/24", "dev", self.name)
            _run("ip", "link", "set", self.name, "up")
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._remove()

    def _remove(self) -> None:
        _run("ip", "link", "del", self.name, check=False)

    def plug(self, pid: int) -> str:
        """Gives the network namespace of a process the device eth0, and returns the device's address."""
        self._last += 1
        address = f"{self._net}{self._last}"
        outside, inside = f"{self._prefix}{self._last}", f"{self._prefix}{self._last}p"
        _run("ip", "link", "del", outside, check=False)
        _run("ip", "link", "add", outside, "type", "veth", "peer", "name", inside)
        _run("ip", "link", "set", outside, "master", self.name, "up")
        _run("ip", "link", "set", inside, "netns", str(pid))
        inner = [
            "link set lo up",
            f"link set {inside} name eth0",
            f"addr add {address}/24 dev eth0",
            "link set eth0 up",
            f"route add default via {self._net}1",
        ]
        _run("nsenter", "-t", str(pid), "-n", "--", "ip", "-batch", "-", stdin="\n".join([*inner, ""]))
        return address

    def cut(self, address: str, *, cut: bool) -> None:
        """Takes a tier off the network, or puts it back: its device outside is down meanwhile."""
        device = f"{self._prefix}{address.rpartition('.')[2]}"
        _run("ip", "link", "set", device, "down" if cut else "up")


def _run(*words: str, stdin: str = "", check: bool = True) -> None:
    done = subprocess.run(words, input=stdin, capture_output=True, text=True, timeout=_WITHIN_S, check=False)
    assert done.returncode == 0 or not check, f"{' '.join(words)}: exit code {done.returncode}: {done.stderr.strip()}"
