"""Limiter and executor with the settings of an overlay for production, and certificates as it asks for them. The other
one, `prod`, differs in the level of its pods alone, which is not what runs here."""

from __future__ import annotations

import contextlib
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import trustme

from fairbox.net.ports import free_port
from tests.k8s.manifests import ROOT, Document, Workload, kustomized, of_kind, workload

STARTS_S = 60.0


def _secrets(folder: Path, documents: list[Document]) -> None:
    """Makes the Secrets that the overlay expects: a folder for each, named by namespace and name."""
    authority = trustme.CA()
    for certificate in of_kind("Certificate", documents=documents):
        spec, namespace = certificate["spec"], certificate["metadata"]["namespace"]
        if spec.get("isCA"):
            continue
        issued = authority.issue_cert(*spec["dnsNames"], *spec.get("ipAddresses", ()))
        place = folder / namespace / spec["secretName"]
        place.mkdir(parents=True)
        (place / "ca.crt").write_bytes(authority.cert_pem.bytes())
        (place / "tls.key").write_bytes(issued.private_key_pem.bytes())
        (place / "tls.crt").write_bytes(b"".join(each.bytes() for each in issued.cert_chain_pems))
    tokens = {role: secrets.token_hex(32) for role in ("client", "executor", "admin")}
    for namespace in ("fairbox", "fairbox-exec"):
        place = folder / namespace / "fairbox-tokens"
        place.mkdir(parents=True)
        for role, token in {**tokens, "rollout": tokens["client"]}.items():
            (place / role).write_text(token, encoding="utf-8")


def _environment(pod: Workload, folder: Path) -> dict[str, str]:
    """Environment of the pod, with its mounted Secrets found in `folder`."""
    volumes = {volume["name"]: volume for volume in pod.spec["volumes"]}
    made = {"PATH": os.environ["PATH"], "HOME": str(folder)}
    for variable, value in pod.env.items():
        if "$(" in value:
            continue
        for mount in pod.container["volumeMounts"]:
            secret = volumes[mount["name"]].get("secret")
            if secret and value.startswith(mount["mountPath"] + "/"):
                value = str(folder / pod.namespace / secret["secretName"] / Path(value).name)
        made[variable] = value
    return made


@contextlib.contextmanager
def _running(module: str, environment: dict[str, str], log: Path) -> Iterator[None]:
    with log.open("w") as out:
        process = subprocess.Popen([sys.executable, "-m", module], cwd=ROOT, env=environment, stdout=out, stderr=out)
    try:
        until = time.monotonic() + STARTS_S
        while "listening on" not in log.read_text():
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < until, log.read_text()
            time.sleep(0.05)
        yield
    finally:
        process.terminate()
        try:
            process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _exec(target: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "rollout.cli", "exec", "--executor", target, "-c", "print(6 * 7)"]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=100, check=False)


def test_a_client_of_the_overlay_is_served_and_a_stranger_is_not(tmp_path: Path) -> None:
    documents = kustomized(ROOT / "deploy" / "overlays" / "restricted")
    _secrets(tmp_path, documents)
    ports = {name: free_port() for name in ("50051", "50052", "50061", "50062")}
    limiter, executor, client = (
        _environment(workload(tier, documents), tmp_path) for tier in ("limiter", "executor", "rollout")
    )
    for environment in (limiter, executor):
        for variable, value in environment.items():
            if value.startswith("0.0.0.0:"):
                environment[variable] = f"0.0.0.0:{ports[value.rpartition(':')[2]]}"
    limiter |= {"LIMITER_LEADER": "none", "LIMITER_FRESH": "true", "LIMITER_METRICS_LISTEN": ""}
    limiter |= {"LIMITER_ADMIN_LISTEN": f"127.0.0.1:{free_port()}", "LIMITER_BUCKETS__CODE__MAX_IN_FLIGHT": "1"}
    scratch, workspaces = tmp_path / "scratch", tmp_path / "workspaces"
    scratch.mkdir()
    workspaces.mkdir()
    # The level is a matter of the pod; here it is whatever this machine has.
    executor |= {"EXECUTOR_MIN_ISOLATION": "landlock", "EXECUTOR_SCRATCH": str(scratch)}
    executor |= {"EXECUTOR_WORKSPACE_DIR": str(workspaces), "EXECUTOR_RESULTS_DIR": str(tmp_path / "results")}
    executor |= {"EXECUTOR_LIMITER": f"localhost:{ports['50052']}"}
    target = f"localhost:{ports['50051']}"
    with (
        _running("limiter", limiter, tmp_path / "limiter.log"),
        _running("executor_service", executor, tmp_path / "executor.log"),
    ):
        served = _exec(target, client)
        assert (served.returncode, served.stdout) == (0, "42\n"), served.stderr
        no_token = {key: value for key, value in client.items() if "TOKEN" not in key}
        assert "needs a token of the role client" in _exec(target, no_token).stderr
        no_certificate = {key: value for key, value in client.items() if not key.startswith("FAIRBOX_TLS_")}
        no_certificate["FAIRBOX_TLS_CA"] = client["FAIRBOX_TLS_CA"]
        assert _exec(target, no_certificate).returncode != 0
