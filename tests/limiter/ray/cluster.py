"""A real Ray cluster on this machine, as small as it can be made."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.limiter.servers import ROOT

_STORE_BYTES = 80 * 1024 * 1024
"""A little more than the least that Ray accepts."""


class RayCluster:
    """The cluster that this process is connected to."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.address: str = inner.address

    @contextmanager
    def another_node(self, **resources: float) -> Iterator[None]:
        """A second node with the resource `elsewhere`, and others; lost at the end, without a goodbye."""
        resources = {"elsewhere": 100, **resources}
        node = self._inner.add_node(num_cpus=1, object_store_memory=_STORE_BYTES, resources=resources)
        try:
            yield
        finally:
            self._inner.remove_node(node, allow_graceful=False)

    @contextmanager
    def silent(self) -> Iterator[None]:
        """The cluster answers nobody within the block."""
        (control,) = self._inner.head_node.all_processes["gcs_server"]
        control.process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            control.process.send_signal(signal.SIGCONT)


@contextmanager
def ray_cluster() -> Iterator[RayCluster]:
    """Starts a cluster of one node, which soon notices when another one is lost, and connects this process to it. Its
    workers can import what lies in this checkout."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # otherwise Ray warns about its own future
    os.environ.setdefault("RAY_gcs_server_port_wait_time_s", "120")  # Ray's own 30 s don't suffice beside other suites
    import ray
    from ray.cluster_utils import Cluster

    head = {
        "num_cpus": 1,
        "include_dashboard": False,
        "include_log_monitor": False,
        "no_monitor": True,
        "object_store_memory": _STORE_BYTES,
        "_system_config": {"health_check_initial_delay_ms": 0, "health_check_period_ms": 500},
    }
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("PYTHONPATH", str(ROOT), prepend=os.pathsep)
        inner = Cluster(initialize_head=True, head_node_args=head)
        try:
            ray.init(address=inner.address, configure_logging=False, log_to_driver=False)
            yield RayCluster(inner)
        finally:
            ray.shutdown()
            inner.shutdown()
