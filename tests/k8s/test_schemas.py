"""Every document passes the strict schemas of each Kubernetes it is for, and a bad edit does not."""

from __future__ import annotations

import copy
import shutil
import subprocess
from collections.abc import Callable

import kubernetes_validate
import pytest
import yaml

from tests.k8s.manifests import APPLIED, FOLDER, Document, load_all, name, of_kind, parse

VERSIONS = [f"1.{minor}" for minor in range(30, 38)]


@pytest.mark.parametrize("version", VERSIONS)
def test_every_document_passes_the_strict_schema(version: str) -> None:
    documents = load_all()
    assert documents
    for document in documents:
        try:
            kubernetes_validate.validate(document, version, strict=True)
        except kubernetes_validate.ValidationError as error:
            pytest.fail(f"{name(document)}: {error.message}")


def _executor() -> Document:
    return copy.deepcopy(next(each for each in of_kind("Deployment") if each["metadata"]["name"] == "executor"))


def _unknown_field(document: Document) -> None:
    document["spec"]["template"]["spec"]["hostUser"] = False


def _wrong_type(document: Document) -> None:
    document["spec"]["minReadySeconds"] = "2"


def _missing_field(document: Document) -> None:
    del document["spec"]["selector"]


def _unknown_in_container(document: Document) -> None:
    document["spec"]["template"]["spec"]["containers"][0]["securityContext"]["readonlyRootFilesystem"] = True


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("edit", [_unknown_field, _wrong_type, _missing_field, _unknown_in_container])
def test_a_bad_edit_is_refused(edit: Callable[[Document], None], version: str) -> None:
    document = _executor()
    edit(document)
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(document, version, strict=True)


def test_a_key_given_twice_is_refused() -> None:
    with pytest.raises(yaml.constructor.ConstructorError, match="twice"):
        parse("spec:\n  replicas: 1\n  replicas: 2\n")


def test_kubectl_takes_the_folder() -> None:
    """`kubectl apply -f k8s/` sends each file with a known ending; a kustomization among them would make it fail."""
    for document in load_all():
        assert "kustomize" not in document["apiVersion"]
    listed = parse((FOLDER / "Kustomization").read_text(encoding="utf-8"))[0]["resources"]
    assert listed == sorted(path.name for path in FOLDER.iterdir() if path.suffix in APPLIED)


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")
def test_kustomize_builds_the_same_documents() -> None:
    done = subprocess.run(
        ["kubectl", "kustomize", str(FOLDER)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert sorted(map(name, parse(done.stdout))) == sorted(map(name, load_all()))
