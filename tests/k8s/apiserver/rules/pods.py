"""What must hold within a pod, beyond its schema."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tests.k8s.apiserver.defaults import containers
from tests.k8s.apiserver.names import dns_label
from tests.k8s.apiserver.problem import FieldProblem, required, wrong
from tests.k8s.apiserver.quantity import parse
from tests.k8s.apiserver.rules.ports import port_name, port_number

__all__ = ["pod"]

Object = Mapping[str, Any]
_SOURCES = 1
"""A volume has one source."""
_HANDLERS = ("exec", "grpc", "httpGet", "tcpSocket")
_SECCOMP = ("RuntimeDefault", "Unconfined", "Localhost")
_RESTARTS = ("Always", "OnFailure", "Never")


def pod(spec: Object, path: str, restarts: tuple[str, ...] = _RESTARTS) -> Iterator[FieldProblem]:
    """`restarts`: the policies that the owner allows."""
    if not spec.get("containers"):
        yield required(f"{path}.containers")
    if spec.get("restartPolicy") not in restarts:
        allowed = ", ".join(f'"{each}"' for each in restarts)
        yield FieldProblem(
            f"{path}.restartPolicy", "Unsupported value", f"supported values: {allowed}", spec.get("restartPolicy")
        )
    volumes: set[str] = set()
    for index, volume in enumerate(spec.get("volumes", ())):
        yield from _volume(volume, f"{path}.volumes[{index}]", volumes)
    names: set[str] = set()
    for below, container in containers(dict(spec)):
        where = f"{path}.{below}"
        if container["name"] in names:
            yield FieldProblem(f"{where}.name", "Duplicate value", value=container["name"])
        names.add(container["name"])
        yield from _container(container, where, volumes)
        unmasked = container.get("securityContext", {}).get("procMount") == "Unmasked"
        if unmasked and spec.get("hostUsers", True):
            yield wrong(f"{where}.securityContext.procMount", "Unmasked", "`hostUsers` must be false to use `Unmasked`")
    yield from _together(spec, path)
    yield from _profile(spec.get("securityContext", {}), f"{path}.securityContext")


def _together(spec: Object, path: str) -> Iterator[FieldProblem]:
    """What the fields of one pod say of each other."""
    if not spec.get("hostUsers", True):
        for field in ("hostNetwork", "hostPID", "hostIPC"):
            if spec.get(field):
                yield FieldProblem(f"{path}.{field}", "Forbidden", "when `hostUsers` is false")
    if spec.get("terminationGracePeriodSeconds", 0) < 0:
        yield wrong(f"{path}.terminationGracePeriodSeconds", spec["terminationGracePeriodSeconds"], "must be >= 0")
    seen: set[tuple[str, str]] = set()
    for index, spread in enumerate(spec.get("topologySpreadConstraints", ())):
        key = (spread["topologyKey"], spread["whenUnsatisfiable"])
        if key in seen:
            yield FieldProblem(f"{path}.topologySpreadConstraints[{index}]", "Duplicate value", value=list(key))
        seen.add(key)


def _volume(volume: Object, path: str, names: set[str]) -> Iterator[FieldProblem]:
    yield from dns_label(f"{path}.name", volume["name"])
    if volume["name"] in names:
        yield FieldProblem(f"{path}.name", "Duplicate value", value=volume["name"])
    names.add(volume["name"])
    sources = [key for key in volume if key != "name"]
    if len(sources) > _SOURCES:
        yield FieldProblem(f"{path}.{sources[1]}", "Forbidden", "may not specify more than 1 volume type")
    if not sources:
        yield required(path, "must specify a volume type")


def _container(container: Object, path: str, volumes: set[str]) -> Iterator[FieldProblem]:
    yield from dns_label(f"{path}.name", container["name"])
    if not container.get("image"):
        yield required(f"{path}.image")
    ports: set[str] = set()
    for index, port in enumerate(container.get("ports", ())):
        where = f"{path}.ports[{index}]"
        yield from port_number(f"{where}.containerPort", port["containerPort"])
        if "name" in port:
            yield from port_name(f"{where}.name", port["name"])
            if port["name"] in ports:
                yield FieldProblem(f"{where}.name", "Duplicate value", value=port["name"])
            ports.add(port["name"])
    yield from _resources(container.get("resources", {}), f"{path}.resources")
    yield from _mounts(container, path, volumes)
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        if probe in container:
            yield from _probe(container[probe], f"{path}.{probe}", ports, readiness=probe == "readinessProbe")
    context = container.get("securityContext", {})
    yield from _profile(context, f"{path}.securityContext")
    if context.get("privileged") and context.get("allowPrivilegeEscalation") is False:
        yield wrong(
            f"{path}.securityContext", "", "cannot set `allowPrivilegeEscalation` to false and `privileged` to true"
        )


def _mounts(container: Object, path: str, volumes: set[str]) -> Iterator[FieldProblem]:
    mounted: set[str] = set()
    for index, mount in enumerate(container.get("volumeMounts", ())):
        where = f"{path}.volumeMounts[{index}]"
        if mount["name"] not in volumes:
            yield FieldProblem(f"{where}.name", "Not found", value=mount["name"])
        if mount["mountPath"] in mounted:
            yield wrong(f"{where}.mountPath", mount["mountPath"], "must be unique")
        mounted.add(mount["mountPath"])


def _resources(resources: Object, path: str) -> Iterator[FieldProblem]:
    limits = resources.get("limits", {})
    for name, value in resources.get("requests", {}).items():
        if parse(value) < 0:
            yield wrong(f"{path}.requests[{name}]", value, "must be greater than or equal to 0")
        if name in limits and parse(value) > parse(limits[name]):
            yield wrong(f"{path}.requests", value, f"must be less than or equal to {name} limit of {limits[name]}")
    extended = {name for name in (*limits, *resources.get("requests", {})) if "/" in name}
    for name in sorted(extended):
        if limits.get(name) != resources.get("requests", {}).get(name):
            yield wrong(f"{path}.limits", limits.get(name), f"must be equal to {name} request")


def _probe(probe: Object, path: str, ports: set[str], *, readiness: bool) -> Iterator[FieldProblem]:
    handlers = [each for each in _HANDLERS if each in probe]
    if not handlers:
        yield required(path, "must specify a handler type")
    for extra in handlers[1:]:
        yield FieldProblem(f"{path}.{extra}", "Forbidden", "may not specify more than 1 handler type")
    for handler in handlers[:1]:
        port = probe[handler].get("port")
        if isinstance(port, int):
            yield from port_number(f"{path}.{handler}.port", port)
        elif isinstance(port, str) and port not in ports:
            # The API server takes it; the kubelet never finds the port. Refused here, because nothing else would see.
            yield FieldProblem(f"{path}.{handler}.port", "Not found", value=port)
    if not readiness and probe.get("successThreshold", 1) != 1:
        yield wrong(f"{path}.successThreshold", probe["successThreshold"], "must be 1")
    for field in ("timeoutSeconds", "periodSeconds", "failureThreshold"):
        if probe.get(field, 1) < 0:
            yield wrong(f"{path}.{field}", probe[field], "must be greater than or equal to 0")


def _profile(context: Object, path: str) -> Iterator[FieldProblem]:
    for field in ("seccompProfile", "appArmorProfile"):
        profile = context.get(field)
        if profile is None:
            continue
        local = profile.get("localhostProfile")
        if profile["type"] not in _SECCOMP:
            supported = ", ".join(f'"{each}"' for each in _SECCOMP)
            yield FieldProblem(
                f"{path}.{field}.type", "Unsupported value", f"supported values: {supported}", profile["type"]
            )
        elif (profile["type"] == "Localhost") != (local is not None):
            yield wrong(f"{path}.{field}.localhostProfile", local, "must be set when type is Localhost, and only then")
