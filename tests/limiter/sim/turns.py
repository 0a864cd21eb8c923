"""Checks that tenants take turns: no tenant gets two grants while another one waits all the time."""

from __future__ import annotations


class Turns:
    """Record of the grants since each waiting tenant began to wait, or got its last grant."""

    def __init__(self) -> None:
        self._since: dict[str, dict[str, None]] = {}
        """By tenant that waits: who was granted something since."""
        self._granted: list[str] = []
        self._found: list[str] = []

    def granted(self, tenant: str) -> None:
        """A grant, in the order of the decisions."""
        self._granted.append(tenant)

    def settle(self, waiting: set[str]) -> None:
        """One event is over: these tenants wait now. Who did not wait before it and after it is not judged."""
        for tenant in [each for each in self._since if each not in waiting]:
            del self._since[tenant]
        for tenant in self._granted:
            self._since.pop(tenant, None)
            for waits, others in self._since.items():
                if tenant in others:
                    self._found.append(f"{tenant} was granted twice while {waits} waited")
                others[tenant] = None
        self._granted.clear()
        for tenant in sorted(waiting):
            self._since.setdefault(tenant, {})

    def found(self) -> list[str]:
        """Violations; each appears once."""
        found, self._found = self._found, []
        return found
