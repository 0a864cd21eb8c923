"""Chooses how a limiter comes to lead, by its settings."""

from __future__ import annotations

import os
import socket

from fairbox.clock import Clock
from fairbox.errors import ConfigError
from limiter.config import LimiterConfig
from limiter.leadership import Alone, Leadership
from limiter.leadership.file import FileLeadership

__all__ = ["open_leadership"]

_LEASE_NAME = "limiter"
"""Name of the Lease: the Role in k8s/ allows this one. Another limiter has another namespace."""


def open_leadership(config: LimiterConfig, clock: Clock) -> Leadership:
    """What `leader` names. ConfigError where this machine does not have what that needs."""
    if config.leader == "file":
        name = f"process {os.getpid()} on {socket.gethostname()}, {config.listen}"
        return FileLeadership(config.state_file, name=name, fresh=config.fresh)
    if config.leader == "k8s":
        return _kubernetes(config, clock)
    return Alone(name=config.listen, fresh=config.fresh)


def _kubernetes(config: LimiterConfig, clock: Clock) -> Leadership:
    try:
        from limiter.leadership import kubernetes  # half a second to import, and an extra
    except ImportError:
        raise ConfigError("leader is 'k8s', which needs more packages: pip install 'fairbox[k8s]'") from None
    namespace = kubernetes.pod_namespace()
    configuration = kubernetes.in_cluster()
    lease = kubernetes.LeaseRecords(namespace, _LEASE_NAME, lambda: configuration)
    return kubernetes.KubernetesLeadership(
        lease, clock, identity=kubernetes.pod_identity(), duration=config.lease_duration_s, fresh=config.fresh
    )
