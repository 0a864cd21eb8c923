"""The variables of k8s/, loaded by the programs that they are for, and what the programs then promise."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from executor_service.app import _KEPT_BYTES
from executor_service.config import ExecutorConfig
from fairbox.config import load
from fairbox.errors import ConfigError
from limiter.config import LimiterConfig
from rollout.config import RolloutConfig
from tests.k8s.manifests import of_kind, workload
from tests.k8s.test_pods import quantity

QUANTITY_MARGIN = 1 << 30
"""Mirrors, packs and file system beyond what workspace_bytes counts."""
BIND_MARGIN_S = 15
"""Time between the end of the drain and the end of the process: leases are given back, channels closed."""


def executor() -> ExecutorConfig:
    return load(
        ExecutorConfig, prefix="EXECUTOR", prog="executor", description="", argv=[], env=workload("executor").env
    )


def limiter() -> LimiterConfig:
    """As it starts in its pod: the file is that of the ConfigMap, which is mounted where its argument says."""
    pod = workload("limiter")
    flag, path = pod.container["args"]
    volumes = {volume["name"]: volume for volume in pod.spec["volumes"]}
    (mount,) = (each for each in pod.container["volumeMounts"] if path.startswith(each["mountPath"] + "/"))
    name = volumes[mount["name"]]["configMap"]["name"]
    (files,) = (each["data"] for each in of_kind("ConfigMap") if each["metadata"]["name"] == name)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / Path(path).name
        file.write_text(files[file.name], encoding="utf-8")
        argv = [flag, str(file)]
        return load(LimiterConfig, prefix="LIMITER", prog="limiter", description="", argv=argv, env=pod.env)


def test_the_limiter_listens_where_its_probes_and_clients_ask() -> None:
    config, ports = limiter(), workload("limiter").ports
    assert config.listen == f"0.0.0.0:{ports['grpc']}"
    assert config.health_listen == f"0.0.0.0:{ports['health']}"
    assert config.insecure


def test_the_admin_service_stays_on_the_loopback_of_its_pod() -> None:
    assert limiter().admin_listen.startswith("127.0.0.1:")


def test_the_executor_listens_where_its_probes_and_clients_ask() -> None:
    config, ports = executor(), workload("executor").ports
    assert config.listen == f"0.0.0.0:{ports['grpc']}"
    assert config.health_listen == f"0.0.0.0:{ports['health']}"
    assert config.insecure
    assert config.limiter.endswith(":50052")


@pytest.mark.parametrize("template", ["rollout", "rollout-sglang"])
def test_the_rollout_settings_are_known(template: str) -> None:
    env = workload(template).env | {"ROLLOUT_OUT": "/out/pod"}
    config = load(RolloutConfig, prefix="ROLLOUT", prog="fairbox rollout", description="", argv=[], env=env)
    assert str(config.out) == "/out/pod"


def test_an_unknown_variable_is_refused() -> None:
    env = workload("executor").env | {"EXECUTOR_MAX_CONCURENT": "8"}
    with pytest.raises(ConfigError, match="MAX_CONCURENT"):
        load(ExecutorConfig, prefix="EXECUTOR", prog="executor", description="", argv=[], env=env)


def test_a_pod_lives_until_its_longest_program_has_ended() -> None:
    config, pod = executor(), workload("executor")
    sleep = pod.container["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert config.drain_grace_s >= config.max_limits.wall_time_s
    assert pod.spec["terminationGracePeriodSeconds"] >= sleep + config.drain_grace_s + BIND_MARGIN_S


def test_the_weakest_level_that_a_restricted_pod_can_have_is_asked_for_and_has_its_folder() -> None:
    config, pod = executor(), workload("executor")
    assert (config.isolation, config.min_isolation) == ("auto", "landlock")
    volumes = {volume["name"]: volume["emptyDir"] for volume in pod.spec["volumes"] if "emptyDir" in volume}
    (mount,) = (mount for mount in pod.container["volumeMounts"] if mount["mountPath"] == config.scratch)
    assert volumes[mount["name"]]["medium"] == "Memory", "on disk, one program could have the pod evicted"
    assert quantity(volumes[mount["name"]]["sizeLimit"]) >= config.max_concurrent * config.limits.disk_bytes


def test_programs_fit_the_memory_of_the_pod() -> None:
    config = executor()
    limit = quantity(workload("executor").container["resources"]["limits"]["memory"])
    assert config.max_limits.memory_bytes + config.max_limits.disk_bytes <= limit
    assert config.max_concurrent * (config.limits.memory_bytes + config.limits.disk_bytes) <= limit


def test_workspaces_have_a_volume_of_their_own_with_room_for_those_that_are_being_made() -> None:
    config, pod = executor(), workload("executor")
    volumes = {volume["name"]: volume for volume in pod.spec["volumes"]}
    mounted = {mount["mountPath"]: volumes[mount["name"]] for mount in pod.container["volumeMounts"]}
    volume = mounted[config.workspace_dir]["emptyDir"]
    assert "medium" not in volume, "in memory, it would count against the memory of programs"
    assert quantity(volume["sizeLimit"]) >= 3 * config.workspace_bytes + QUANTITY_MARGIN


def test_results_have_a_volume_that_a_restarted_container_finds_again() -> None:
    config, pod = executor(), workload("executor")
    volumes = {volume["name"]: volume for volume in pod.spec["volumes"]}
    mounted = {mount["mountPath"]: volumes[mount["name"]] for mount in pod.container["volumeMounts"]}
    volume = mounted[config.results_dir]["emptyDir"]
    assert "medium" not in volume, "in memory, it would count against the memory of programs"
    assert quantity(volume["sizeLimit"]) >= 3 * _KEPT_BYTES, "free pages and the log are in it too"


def test_the_cluster_wide_limit_is_what_all_executors_can_run() -> None:
    (autoscaler,) = of_kind("HorizontalPodAutoscaler")
    bucket = limiter().buckets["code"]
    assert bucket.max_in_flight <= autoscaler["spec"]["maxReplicas"] * executor().max_concurrent
