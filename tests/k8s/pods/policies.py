"""NetworkPolicies and Services as nftables rules of one pod's own network namespace. Pure: text out.

A pod that a policy selects in a direction may do in that direction what some rule names, and nothing else; one that
none selects may do all. The node reaches every pod of its own, as a kubelet does for probes. Destinations are judged
after a virtual address became a pod's, as network plugins judge them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tests.k8s.pods.objects import Document, Objects, selects
from tests.k8s.pods.services import Endpoint, VirtualService

__all__ = ["ruleset"]

TABLE = "fairbox_rig"


def ruleset(
    pod: Endpoint, objects: Objects, peers: Iterable[Endpoint], services: Iterable[VirtualService], node: str
) -> str:
    """What `nft -f` takes to replace the whole table at once. `node` is the address that always gets in."""
    peers = list(peers)
    return "\n".join(
        [
            f"add table ip {TABLE}",
            f"delete table ip {TABLE}",
            f"table ip {TABLE} {{",
            *_translation(list(services)),
            *_chain("input", "saddr", _rules(pod, objects, peers, "Ingress"), always=[f"ip saddr {node} accept"]),
            *_chain("output", "daddr", _rules(pod, objects, peers, "Egress"), always=[]),
            "}",
            "",
        ]
    )


def _translation(services: Sequence[VirtualService]) -> list[str]:
    lines = ["  chain services {", "    type nat hook output priority -100; policy accept;"]
    for each in services:
        match = f"    ip daddr {each.address} {each.protocol} dport {each.port}"
        if each.targets:
            cases = ", ".join(f"{n} : {address} . {port}" for n, (address, port) in enumerate(each.targets))
            lines.append(f"{match} dnat ip addr . port to numgen random mod {len(each.targets)} map {{ {cases} }}")
    lines += ["  }", "  chain unserved {", "    type filter hook output priority -200; policy accept;"]
    lines += [
        f"    ip daddr {each.address} {each.protocol} dport {each.port} reject" for each in services if not each.targets
    ]
    return [*lines, "  }"]


def _chain(name: str, side: str, rules: list[tuple[str, str]] | None, *, always: list[str]) -> list[str]:
    """`rules`: pairs of addresses and ports; None: no policy selects the pod in this direction."""
    policy = "accept" if rules is None else "drop"
    lines = [f"  chain {name} {{", f"    type filter hook {name} priority 0; policy {policy};"]
    # A rule that is gone ends new connections only, as with most network plugins.
    interface = "iif" if name == "input" else "oif"
    lines += [f"    {interface} lo accept", "    ct state established,related accept", *(f"    {a}" for a in always)]
    for addresses, ports in rules or ():
        where = f"ip {side} {{ {addresses} }} " if addresses else ""
        lines.append(f"    {where}{ports}accept")
    return [*lines, "  }"]


def _rules(pod: Endpoint, objects: Objects, peers: Sequence[Endpoint], direction: str) -> list[tuple[str, str]] | None:
    policies = [
        policy["spec"]
        for policy in objects.of("NetworkPolicy", pod.namespace)
        if direction in _directions(policy["spec"]) and selects(policy["spec"].get("podSelector"), pod.labels)
    ]
    if not policies:
        return None
    side = "from" if direction == "Ingress" else "to"
    found: list[tuple[str, str]] = []
    for rule in (rule for policy in policies for rule in policy.get(direction.lower()) or ()):
        addresses = _addresses(rule.get(side), objects, peers, pod.namespace)
        if addresses == []:
            continue
        ports = _ports(rule.get("ports"), pod if direction == "Ingress" else None)
        found += [(", ".join(addresses or ()), each) for each in ports]
    return found


def _directions(spec: Document) -> Sequence[str]:
    return spec.get("policyTypes") or (["Ingress", "Egress"] if spec.get("egress") else ["Ingress"])


def _addresses(
    selectors: list[Document] | None, objects: Objects, peers: Sequence[Endpoint], home: str
) -> list[str] | None:
    """None: everybody."""
    if not selectors:
        return None
    found = []
    for selector in selectors:
        if "ipBlock" in selector:
            if selector["ipBlock"].get("except"):
                raise ValueError("an ipBlock has `except`, which is not understood here")
            found.append(selector["ipBlock"]["cidr"])
            continue
        for peer in peers:
            if "namespaceSelector" in selector:
                near = selects(selector["namespaceSelector"], objects.labels_of(peer.namespace))
            else:
                near = peer.namespace == home
            if near and selects(selector.get("podSelector"), peer.labels):
                found.append(peer.address)
    return sorted(dict.fromkeys(found))


def _ports(ports: list[Document] | None, pod: Endpoint | None) -> list[str]:
    if not ports:
        return [""]
    found = []
    for port in ports:
        protocol = port.get("protocol", "TCP").lower()
        number = port.get("port")
        if isinstance(number, str):
            if pod is None:
                raise ValueError(f"an egress rule names port {number}; only numbers are understood here")
            number = pod.ports[number]
        last = f"-{port['endPort']}" if "endPort" in port else ""
        found.append(f"{protocol} dport {number}{last} " if number else f"meta l4proto {protocol} ")
    return found
