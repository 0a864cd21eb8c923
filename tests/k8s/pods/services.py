"""Services: their names, their virtual addresses and the pods behind them. Pure.

A name of a headless Service has one address for each pod that is ready (or for each pod, where it publishes those that
are not ready); any other has one virtual address, which each pod's own network turns into that of a pod.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tests.k8s.pods.objects import Document, Objects

__all__ = ["DOMAIN", "Endpoint", "VirtualService", "names", "virtual_addresses", "virtual_services"]

DOMAIN = "cluster.local"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A pod as Services and policies see it."""

    namespace: str
    name: str
    labels: Mapping[str, str]
    address: str
    ready: bool
    ports: Mapping[str, int]

    def number(self, port: str | int) -> int:
        return port if isinstance(port, int) else self.ports[port]


@dataclass(frozen=True, slots=True)
class VirtualService:
    """One port of a Service with a virtual address, and what it leads to."""

    address: str
    port: int
    protocol: str
    targets: tuple[tuple[str, int], ...]


def virtual_addresses(
    objects: Objects, prefix: str, known: Mapping[tuple[str, str], str]
) -> dict[tuple[str, str], str]:
    """An address for each Service that is not headless; those that have one keep it. `prefix` is like `10.96.0.`."""
    addresses = dict(known)
    free = (f"{prefix}{number}" for number in range(1, 255) if f"{prefix}{number}" not in known.values())
    for service in objects.of("Service"):
        key = (service["metadata"]["namespace"], service["metadata"]["name"])
        given = service["spec"].get("clusterIP")
        if given != "None" and key not in addresses:
            addresses[key] = given or next(free)
    return addresses


def _behind(service: Document, pods: Iterable[Endpoint]) -> list[Endpoint]:
    selector = service["spec"].get("selector") or {}
    everyone = bool(service["spec"].get("publishNotReadyAddresses"))
    namespace = service["metadata"]["namespace"]
    return [
        pod
        for pod in pods
        if selector
        and pod.namespace == namespace
        and selector.items() <= dict(pod.labels).items()
        and (pod.ready or everyone)
    ]


def names(
    objects: Objects, pods: Iterable[Endpoint], addresses: Mapping[tuple[str, str], str]
) -> dict[str, tuple[str, ...]]:
    """Every name in full, and its addresses."""
    pods = list(pods)
    found: dict[str, tuple[str, ...]] = {}
    for service in objects.of("Service"):
        namespace, name = service["metadata"]["namespace"], service["metadata"]["name"]
        full = f"{name}.{namespace}.svc.{DOMAIN}"
        if service["spec"].get("clusterIP") == "None":
            behind = _behind(service, pods)
            found[full] = tuple(pod.address for pod in behind)
            found |= {f"{pod.name}.{full}": (pod.address,) for pod in behind}
        else:
            found[full] = (addresses[namespace, name],)
    return found


def virtual_services(
    objects: Objects, pods: Iterable[Endpoint], addresses: Mapping[tuple[str, str], str]
) -> list[VirtualService]:
    """Every port of every Service that has a virtual address."""
    pods = list(pods)
    return [
        VirtualService(
            address=addresses[service["metadata"]["namespace"], service["metadata"]["name"]],
            port=int(port["port"]),
            protocol=port.get("protocol", "TCP").lower(),
            targets=tuple(
                (pod.address, pod.number(port.get("targetPort", port["port"]))) for pod in _behind(service, pods)
            ),
        )
        for service in objects.of("Service")
        if service["spec"].get("clusterIP") != "None"
        for port in service["spec"].get("ports") or ()
    ]
