"""The variables of k8s/, loaded by the programs that they are for, and what the programs then promise."""

from __future__ import annotations

import pytest

from executor_service.config import ExecutorConfig
from fairbox.config import load
from fairbox.errors import ConfigError
from tests.k8s.manifests import workload
from tests.k8s.test_pods import quantity

BIND_MARGIN_S = 15
"""From the end of the drain to the end of the process: leases are given back, channels closed."""


def executor() -> ExecutorConfig:
    return load(
        ExecutorConfig, prefix="EXECUTOR", prog="executor", description="", argv=[], env=workload("executor").env
    )


def test_the_executor_listens_where_its_probes_and_clients_ask() -> None:
    config, ports = executor(), workload("executor").ports
    assert config.listen == f"0.0.0.0:{ports['grpc']}"
    assert config.health_listen == f"0.0.0.0:{ports['health']}"
    assert config.insecure
    assert config.limiter.endswith(":50052")


def test_an_unknown_variable_is_refused() -> None:
    env = workload("executor").env | {"EXECUTOR_MAX_CONCURENT": "8"}
    with pytest.raises(ConfigError, match="MAX_CONCURENT"):
        load(ExecutorConfig, prefix="EXECUTOR", prog="executor", description="", argv=[], env=env)


def test_a_pod_lives_until_its_longest_program_has_ended() -> None:
    config, pod = executor(), workload("executor")
    sleep = pod.container["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert config.drain_grace_s >= config.max_limits.wall_time_s
    assert pod.spec["terminationGracePeriodSeconds"] >= sleep + config.drain_grace_s + BIND_MARGIN_S


def test_programs_fit_the_memory_of_the_pod() -> None:
    config = executor()
    limit = quantity(workload("executor").container["resources"]["limits"]["memory"])
    assert config.max_limits.memory_bytes + config.max_limits.disk_bytes <= limit
    assert config.max_concurrent * (config.limits.memory_bytes + config.limits.disk_bytes) <= limit
