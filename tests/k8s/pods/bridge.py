"""A network of its own for pods: a bridge on this machine, and a pair of devices into each pod's network namespace.

Nothing of it leaves the machine: the bridge has no way out, and no rule of the machine's own firewall is touched. All
names begin with the prefix that the rig was given, and go when the block is left.
"""

from __future__ import annotations

import contextlib
from types import TracebackType

from tests.k8s.pods.commands import CommandError, run

__all__ = ["Bridge"]

_LENGTH = 15
"""The kernel's limit for names of devices."""


class Bridge:
    """`async with Bridge("fbxr", "10.232.10.")`: the node is `.1`, its name server `.2`, pods from `.10` on."""

    def __init__(self, prefix: str, net: str) -> None:
        self.name = f"{prefix}0"
        self.node, self.nameserver = f"{net}1", f"{net}2"
        self._prefix, self._net = prefix, net
        self._used: set[int] = set()
        self._last = 9
        assert len(f"{prefix}255p") <= _LENGTH, "a name that long is no device's"

    async def __aenter__(self) -> Bridge:
        with contextlib.suppress(CommandError):  # of a rig that was killed
            await run("ip", "link", "del", self.name)
        await run("ip", "link", "add", self.name, "type", "bridge")
        try:
            for address in (self.node, self.nameserver):
                await run("ip", "addr", "add", f"{address}/24", "dev", self.name)
            await run("ip", "link", "set", self.name, "up")
        except BaseException:
            await self._remove()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._remove()

    async def _remove(self) -> None:
        with contextlib.suppress(CommandError):
            await run("ip", "link", "del", self.name)

    def take_address(self) -> str:
        """One that no pod has or had lately: others know that by the device of its former holder. Give it back with
        `free`."""
        order = [*range(self._last + 1, 255), *range(10, self._last + 1)]
        number = self._last = next(number for number in order if number not in self._used)
        self._used.add(number)
        return f"{self._net}{number}"

    async def plug(self, pid: int, address: str) -> None:
        """Gives the network namespace of a process the device eth0 with this address."""
        number = address.rpartition(".")[2]
        outside, inside = f"{self._prefix}{number}", f"{self._prefix}{number}p"
        with contextlib.suppress(CommandError):
            await run("ip", "link", "del", outside)
        await run("ip", "link", "add", outside, "type", "veth", "peer", "name", inside)
        await run("ip", "link", "set", outside, "master", self.name, "up")
        await run("ip", "link", "set", inside, "netns", str(pid))
        inner = [
            "link set lo up",
            f"link set {inside} name eth0",
            f"addr add {address}/24 dev eth0",
            "link set eth0 up",
        ]
        await within(pid, "ip", "-batch", "-", stdin="\n".join([*inner, f"route add default via {self.node}", ""]))

    async def cut(self, address: str, *, cut: bool) -> None:
        """Takes a pod off the network, or puts it back: its device outside is down meanwhile."""
        device = f"{self._prefix}{address.rpartition('.')[2]}"
        await run("ip", "link", "set", device, "down" if cut else "up")

    def free(self, address: str) -> None:
        """The namespace is gone, and the devices with it."""
        self._used.discard(int(address.rpartition(".")[2]))


async def within(pid: int, *words: str, stdin: str | None = None) -> str:
    """Runs a command in the network namespace of a process."""
    return await run("nsenter", "-t", str(pid), "-n", "--", *words, stdin=stdin)
