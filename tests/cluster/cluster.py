"""The deployment on a cluster, and what tests do with it through kubectl."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tests.k8s.manifests import FOLDER, find_kubectl

APPLIED = ("-k", folder) if (folder := os.environ.get("FAIRBOX_CLUSTER_FOLDER", "")) else ("-f", str(FOLDER))
"""Arguments of `kubectl apply`: k8s/, or the kustomization that FAIRBOX_CLUSTER_FOLDER names."""
NAMESPACE = {"limiter": "fairbox", "executor": "fairbox-exec"}
CLIENT = {"fairbox.dev/client": "true"}
"""Labels of a pod that may acquire tokens and run programs."""
_SMALL = {"requests": {"cpu": "100m", "memory": "256Mi"}, "limits": {"memory": "1Gi"}}
_LEAST = {"limiter": 1, "executor": 2}

Document = dict[str, Any]


class Cluster:
    """kubectl with the configuration of this environment, and the pods of the three tiers."""

    def __init__(self) -> None:
        self._program = find_kubectl() or "kubectl"

    def attempt(self, *words: str, stdin: str = "", within_s: float = 120.0) -> subprocess.CompletedProcess[str]:
        """Runs kubectl to its end. TimeoutExpired if that takes longer."""
        return subprocess.run(
            [self._program, *words], input=stdin, capture_output=True, text=True, timeout=within_s, check=False
        )

    def kubectl(self, *words: str, stdin: str = "", within_s: float = 120.0) -> str:
        """Runs kubectl, which has to succeed, and returns what it printed."""
        done = self.attempt(*words, stdin=stdin, within_s=within_s)
        assert done.returncode == 0, f"kubectl {' '.join(words)}: {done.stderr}{done.stdout}"
        return done.stdout

    def get(self, namespace: str, *words: str) -> Document:
        """An object or a list of objects."""
        found: Document = json.loads(self.kubectl("-n", namespace, "get", *words, "-o", "json"))
        return found

    def settle(self) -> None:
        """Waits until both Deployments are rolled out, with as many ready pods as they need at least."""
        for tier, namespace in NAMESPACE.items():
            words = ("-n", namespace, "rollout", "status", f"deployment/{tier}", "--timeout=300s")
            self.kubectl(*words, within_s=310)
        until(lambda: all(len(self.ready(tier)) >= least for tier, least in _LEAST.items()), "pods are missing", 120)

    def pods(self, tier: str) -> list[Document]:
        """Pods of a tier that nobody has deleted."""
        found = self.get(NAMESPACE[tier], "pods", "-l", f"app.kubernetes.io/name={tier}")["items"]
        return [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]

    def ready(self, tier: str) -> list[Document]:
        """Pods of a tier that the kubelet found ready."""
        return [
            pod
            for pod in self.pods(tier)
            for condition in pod["status"].get("conditions", ())
            if (condition["type"], condition["status"]) == ("Ready", "True")
        ]

    def execute(self, pod: Document, *words: str) -> str:
        """Runs a command inside a pod, and returns what it printed."""
        meta = pod["metadata"]
        return self.kubectl("-n", meta["namespace"], "exec", meta["name"], "--", *words)

    def set_env(self, tier: str, *variables: str) -> None:
        """Changes variables of a Deployment, which starts an update."""
        self.kubectl("-n", NAMESPACE[tier], "set", "env", f"deployment/{tier}", *variables)

    def template(self, name: str) -> Document:
        """A Job from the template of rollouts, not yet sent."""
        source = ("--from=cronjob/rollout", "--dry-run=client", "-o", "json")
        made: Document = json.loads(self.kubectl("-n", "fairbox", "create", "job", name, *source))
        return made

    def start(
        self, name: str, words: Sequence[str], *, labels: Mapping[str, str] = CLIENT, namespace: str = "fairbox"
    ) -> None:
        """Starts a small pod of the rollout image with another command, without the volume of the dumps."""
        job = self.template(name)
        job["metadata"] = {"name": name, "namespace": namespace}
        template = job["spec"]["template"]
        template["metadata"]["labels"] = dict(labels)
        template["spec"].pop("serviceAccountName")
        template["spec"]["volumes"] = [each for each in template["spec"]["volumes"] if each["name"] != "out"]
        (container,) = template["spec"]["containers"]
        container["volumeMounts"] = [each for each in container["volumeMounts"] if each["name"] != "out"]
        container |= {"command": list(words[:1]), "args": list(words[1:]), "resources": _SMALL}
        self.kubectl("apply", "-f", "-", stdin=json.dumps(job))

    def logs(self, name: str, namespace: str = "fairbox") -> str:
        """Output of a Job so far; empty while its pod has not started."""
        return self.attempt("-n", namespace, "logs", f"job/{name}").stdout

    def finish(self, name: str, *, namespace: str = "fairbox", within_s: float = 120.0) -> str:
        """Waits until a Job has succeeded, and returns what it printed."""

        def ended() -> bool:
            status = self.get(namespace, "job", name).get("status", {})
            assert not status.get("failed"), self.logs(name, namespace)
            return bool(status.get("succeeded"))

        until(ended, f"job {name} has not ended", within_s)
        return self.logs(name, namespace)


def until(holds: Callable[[], bool], otherwise: str, within_s: float) -> None:
    """Asks again until it holds. AssertionError with `otherwise` if it takes longer."""
    deadline = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < deadline, f"{otherwise} after {within_s:g} s"
        time.sleep(0.5)
