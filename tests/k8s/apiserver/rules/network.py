"""What must hold for Services and network policies."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator, Mapping
from typing import Any

from tests.k8s.apiserver.names import dns_label, labels
from tests.k8s.apiserver.problem import FieldProblem, required, wrong
from tests.k8s.apiserver.rules.ports import port_name, port_number
from tests.k8s.apiserver.rules.selectors import selector

__all__ = ["policy", "service"]

Object = Mapping[str, Any]
_PROTOCOLS = ("TCP", "UDP", "SCTP")
_APP_PROTOCOL = re.compile(r"([a-z0-9.-]+/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")


def service(found: Object) -> Iterator[FieldProblem]:
    spec = found["spec"]
    ports = spec.get("ports", ())
    if not ports and spec.get("clusterIP") != "None" and spec["type"] != "ExternalName":
        yield required("spec.ports")
    yield from labels("spec.selector", spec.get("selector", {}))
    seen: set[tuple[str, int]] = set()
    for index, port in enumerate(ports):
        path = f"spec.ports[{index}]"
        if len(ports) > 1 and not port.get("name"):
            yield required(f"{path}.name")
        if port.get("name"):
            yield from dns_label(f"{path}.name", port["name"])
        yield from port_number(f"{path}.port", port["port"])
        target = port.get("targetPort", port["port"])
        check = port_number if isinstance(target, int) else port_name
        yield from check(f"{path}.targetPort", target)
        if port["protocol"] not in _PROTOCOLS:
            yield FieldProblem(f"{path}.protocol", "Unsupported value", value=port["protocol"])
        if "appProtocol" in port and not _APP_PROTOCOL.fullmatch(port["appProtocol"]):
            yield wrong(f"{path}.appProtocol", port["appProtocol"], "must be a qualified name")
        key = (port["protocol"], port["port"])
        if key in seen:
            yield FieldProblem(path, "Duplicate value", value=port["port"])
        seen.add(key)


def policy(found: Object) -> Iterator[FieldProblem]:
    spec = found["spec"]
    yield from selector("spec.podSelector", spec.get("podSelector", {}))
    for index, kind in enumerate(spec["policyTypes"]):
        if kind not in ("Ingress", "Egress"):
            yield FieldProblem(f"spec.policyTypes[{index}]", "Unsupported value", value=kind)
    for direction, side in (("ingress", "from"), ("egress", "to")):
        for index, rule in enumerate(spec.get(direction, ())):
            yield from _rule(rule, side, f"spec.{direction}[{index}]")


def _rule(rule: Object, side: str, path: str) -> Iterator[FieldProblem]:
    for index, port in enumerate(rule.get("ports", ())):
        where = f"{path}.ports[{index}]"
        number = port.get("port")
        if isinstance(number, int):
            yield from port_number(f"{where}.port", number)
        elif isinstance(number, str):
            yield from port_name(f"{where}.port", number)
        if port["protocol"] not in _PROTOCOLS:
            yield FieldProblem(f"{where}.protocol", "Unsupported value", value=port["protocol"])
    for index, peer in enumerate(rule.get(side, ())):
        where = f"{path}.{side}[{index}]"
        if not peer:
            yield required(where, "must specify a peer")
        if "ipBlock" in peer:
            if len(peer) > 1:
                yield FieldProblem(where, "Forbidden", "may not specify both ipBlock and another peer")
            yield from _block(peer["ipBlock"]["cidr"], f"{where}.ipBlock.cidr")
        for field in ("podSelector", "namespaceSelector"):
            yield from selector(f"{where}.{field}", peer.get(field, {}))


def _block(cidr: str, path: str) -> Iterator[FieldProblem]:
    try:
        ipaddress.ip_network(cidr)
    except ValueError:
        yield wrong(path, cidr, "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)")
