"""The record of who leads as one Lease object of Kubernetes (coordination.k8s.io/v1).

    spec.holderIdentity, spec.leaseDurationSeconds    as everywhere; the duration is rounded up
    spec.acquireTime, spec.renewTime                  for people: nothing here reads them
    spec.leaseTransitions                             terms, counted
    metadata.annotations fairbox.dev/epoch, .../renewal, .../roster, .../key
    metadata.resourceVersion                          the version that a write replaces

The epoch has an annotation of its own because leaseTransitions has 32 bits and starts at 0 when somebody deletes the
object. Labels and annotations of others are kept.
"""

from __future__ import annotations

import datetime
import json
import logging
import math
import os
import socket
import uuid
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
from kubernetes_asyncio.client import ApiClient, Configuration, CoordinationV1Api
from kubernetes_asyncio.config import ConfigException, load_incluster_config

from fairbox.errors import ConfigError
from limiter.leadership.election import Conflict, Record, RosterRefused, StoreUnavailable
from limiter.leadership.term import Member, decode_key, decode_roster, encode_roster

_LOG = logging.getLogger("limiter.leadership")
_EPOCH, _RENEWAL, _ROSTER = "fairbox.dev/epoch", "fairbox.dev/renewal", "fairbox.dev/roster"
_KEY = "fairbox.dev/key"
_MAX_ROSTER_BYTES = 200_000
"""All annotations of an object together may have 256 KiB."""
_KEPT = ("labels", "annotations", "ownerReferences", "finalizers")
"""Fields of the metadata that belong to others."""
_NAMESPACE_FILE = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"
_OK, _CREATED, _NOT_FOUND, _CONFLICT = 200, 201, 404, 409


class LeaseRecords:
    """A `RecordStore`. The connection is opened by the first call, in its event loop; `close()` it."""

    def __init__(self, namespace: str, name: str, configuration: Callable[[], Configuration]) -> None:
        """`configuration` says where the API server is and who asks; it may raise ConfigError."""
        self.namespace = namespace
        self.name = name
        self._configuration = configuration
        self._client: ApiClient | None = None
        self._seen: dict[str, Any] = {}
        """The object as it was last read or written."""

    async def read(self) -> Record | None:
        """The Lease. ConfigError when its epoch can't be read: then nobody may lead until a person has looked."""
        status, body = await self._call("read_namespaced_lease", self.name, self.namespace)
        if status == _NOT_FOUND:
            self._seen = {}
            return None
        if status != _OK:
            raise _refused(status, body)
        self._seen = body
        return self._record(body)

    async def write(self, record: Record, expected: str | None) -> Record:
        """Creates or replaces the Lease."""
        lease = self._lease(record, expected)
        if expected is None:
            status, body = await self._call("create_namespaced_lease", self.namespace, lease)
        else:
            status, body = await self._call("replace_namespaced_lease", self.name, self.namespace, lease)
        # Replacing what was deleted meanwhile is a conflict; creating in a namespace that is not there is a mistake.
        if status == _CONFLICT or (status == _NOT_FOUND and expected is not None):
            raise Conflict
        if status not in (_OK, _CREATED):
            raise _refused(status, body)
        self._seen = body
        return replace(record, version=_version(body))

    async def close(self) -> None:
        """Closes the connection. Idempotent; a later call opens another."""
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    async def _call(self, method: str, *arguments: Any) -> tuple[int, dict[str, Any]]:
        if self._client is None:
            self._client = ApiClient(self._configuration())
        api = CoordinationV1Api(self._client)
        try:
            # As plain data: the library's models would drop what they don't know, and write times without microseconds
            # that the API server refuses.
            async with await getattr(api, method)(*arguments, _preload_content=False) as response:
                body = await response.json(content_type=None)
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise StoreUnavailable(f"the API server can't be asked: {error or type(error).__name__}") from None
        return response.status, body if isinstance(body, dict) else {}

    def _record(self, lease: Mapping[str, Any]) -> Record:
        spec = lease.get("spec") or {}
        annotations = lease["metadata"].get("annotations") or {}
        epoch = annotations.get(_EPOCH, str(max(1, spec.get("leaseTransitions") or 0)))
        if not (epoch.isascii() and epoch.isdigit()):
            raise ConfigError(f"Lease {self.namespace}/{self.name}: annotation {_EPOCH} is {epoch!r}, must be a number")
        return Record(
            holder=spec.get("holderIdentity") or "",
            epoch=int(epoch),
            duration=float(spec.get("leaseDurationSeconds") or 0),
            renewal=annotations.get(_RENEWAL) or str(spec.get("renewTime")),
            roster=self._roster(annotations.get(_ROSTER)),
            key=self._key(annotations.get(_KEY)),
            version=_version(lease),
        )

    def _roster(self, text: str | None) -> tuple[Member, ...] | None:
        if text is None:
            return None
        try:
            return decode_roster(json.loads(text))
        except ValueError as error:
            _LOG.warning("Lease %s/%s: annotation %s: %s", self.namespace, self.name, _ROSTER, error)
            return None

    def _key(self, text: str | None) -> bytes:
        try:
            return b"" if text is None else decode_key(text)
        except ValueError as error:
            _LOG.warning("Lease %s/%s: annotation %s: %s", self.namespace, self.name, _KEY, error)
            return b""

    def _lease(self, record: Record, expected: str | None) -> dict[str, Any]:
        known = self._seen if expected is not None and self._seen and _version(self._seen) == expected else {}
        old, spec = known.get("metadata") or {}, known.get("spec") or {}
        metadata: dict[str, Any] = {key: old[key] for key in _KEPT if key in old}
        annotations = dict(metadata.get("annotations") or {})
        new_term = annotations.get(_EPOCH) != str(record.epoch)
        annotations |= {_EPOCH: str(record.epoch), _RENEWAL: record.renewal}
        if record.key:
            annotations[_KEY] = record.key.hex()
        annotations.pop(_ROSTER, None)
        if record.roster is not None:
            annotations[_ROSTER] = _roster_text(record.roster)
        metadata |= {"name": self.name, "namespace": self.namespace, "annotations": annotations}
        if expected is not None:
            metadata["resourceVersion"] = expected
        now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        spec = spec | {
            "holderIdentity": record.holder,
            "leaseDurationSeconds": math.ceil(record.duration),
            "acquireTime": now if new_term else spec.get("acquireTime", now),
            "renewTime": now,
            "leaseTransitions": (spec.get("leaseTransitions") or 0) + new_term,
        }
        return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec}


def in_cluster() -> Configuration:
    """The API server as a pod knows it, with the token of its service account. ConfigError outside of pods."""
    configuration = Configuration()
    try:
        load_incluster_config(client_configuration=configuration)
    except (ConfigException, OSError) as error:
        raise ConfigError(f"leader is 'k8s', which needs a pod with a service account's token: {error}") from None
    return configuration


def pod_identity(environment: Mapping[str, str] = os.environ) -> str:
    """Name and uid of this pod (POD_NAME, POD_UID): a restarted container has those of its predecessor, which proves
    that one dead. Without them something that nobody had before, so that every restart has to wait."""
    name, uid = environment.get("POD_NAME", ""), environment.get("POD_UID", "")
    return f"{name}_{uid}" if name and uid else f"{name or socket.gethostname()}_{uuid.uuid4()}"


def pod_namespace(environment: Mapping[str, str] = os.environ) -> str:
    """Namespace of this pod: POD_NAMESPACE, or what its service account says. ConfigError where neither is there."""
    if namespace := environment.get("POD_NAMESPACE", ""):
        return namespace
    try:
        return Path(_NAMESPACE_FILE).read_text(encoding="utf-8").strip()
    except OSError:
        raise ConfigError("POD_NAMESPACE is not set, and this is no pod that would know its own") from None


def _version(lease: Mapping[str, Any]) -> str:
    return str(lease["metadata"]["resourceVersion"])


def _roster_text(roster: tuple[Member, ...]) -> str:
    text = json.dumps(encode_roster(roster), separators=(",", ":"))
    if len(text) > _MAX_ROSTER_BYTES:  # names are for people; sessions are what counts
        text = json.dumps(encode_roster([Member(member.session_id, "") for member in roster]), separators=(",", ":"))
    if len(text) > _MAX_ROSTER_BYTES:
        raise RosterRefused(f"{len(roster)} executors are more than a Lease has room for")
    return text


def _refused(status: int, body: Mapping[str, Any]) -> StoreUnavailable:
    return StoreUnavailable(f"the API server answered {status}: {str(body.get('message', ''))[:300] or 'no message'}")
