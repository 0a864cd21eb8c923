"""Custom resources against their projects' own schemas, which npm has as validators and as types of TypeScript.

Validators say what is wrong or missing, types what is unknown. Fetched once a session; skips where npm can't.
"""

from __future__ import annotations

import copy
import json
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.k8s.custom import KINDS, CustomKind
from tests.k8s.manifests import COMPONENTS, OVERLAYS, Document, kustomized, name

TYPESCRIPT = "typescript@5.9.3"
_VALIDATE = """
const found = JSON.parse(require("fs").readFileSync(0));
const wrong = [];
for (const {module, kind, document} of found) {
  try { new (require(module)[kind])(document).validate(); } catch (error) { wrong.push(`${kind}: ${error.message}`); }
}
console.log(JSON.stringify(wrong));
"""


def _by_kind() -> list[tuple[CustomKind, Document]]:
    kinds = {(f"{kind.group}/{kind.version}", kind.kind): kind for kind in KINDS}
    documents = {name(each): each for folder in (*COMPONENTS, *OVERLAYS) for each in kustomized(folder)}
    return [
        (kinds[key], document)
        for document in documents.values()
        if (key := (document["apiVersion"], document["kind"])) in kinds
    ]


def _module(kind: CustomKind) -> str:
    return f"{kind.package.rpartition('@')[0]}/{kind.group}/{kind.version}/{kind.kind}"


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("npm")
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed")
    wanted = sorted({kind.package for kind in KINDS if kind.package})
    command = [
        "npm",
        "install",
        "--prefix",
        str(folder),
        "--no-audit",
        "--no-fund",
        "--ignore-scripts",
        *wanted,
        TYPESCRIPT,
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    except subprocess.TimeoutExpired:
        pytest.skip("npm did not end within 100 s")
    if done.returncode != 0:
        pytest.skip(f"npm can't install {', '.join(wanted)}: {done.stderr[-300:]}")
    return folder


def _wrong(packages: Path, found: list[tuple[CustomKind, Document]]) -> list[str]:
    """What the validators, and then the compiler, have against them."""
    sent = [{"module": _module(kind), "kind": kind.kind, "document": document} for kind, document in found]
    done = subprocess.run(
        ["node", "-e", _VALIDATE],
        input=json.dumps(sent),
        cwd=packages,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    wrong: list[str] = json.loads(done.stdout)
    lines = []
    for index, (kind, document) in enumerate(found):
        lines.append(f'import type {{I{kind.kind} as T{index}}} from "{_module(kind)}";')
        lines.append(f"export const v{index}: T{index} = {json.dumps(document)};")
    (packages / "check.ts").write_text("\n".join(lines), encoding="utf-8")
    options = ["--noEmit", "--strict", "--skipLibCheck", "--module", "nodenext", "--moduleResolution", "nodenext"]
    compiler = packages / "node_modules" / ".bin" / "tsc"
    done = subprocess.run(
        [str(compiler), *options, "check.ts"], cwd=packages, capture_output=True, text=True, timeout=100, check=False
    )
    return wrong + done.stdout.splitlines()


def test_they_pass_the_schemas_of_their_projects(packages: Path) -> None:
    found = [(kind, document) for kind, document in _by_kind() if kind.package]
    assert {kind.kind for kind, _ in found} == {kind.kind for kind in KINDS if kind.package}
    assert not _wrong(packages, found)


def test_a_slip_in_one_is_found(packages: Path) -> None:
    kind, document = next(each for each in _by_kind() if each[0].kind == "Certificate")
    for field, value, word in (("secretName", 1, "string"), ("dnsName", ["a"], "dnsName")):
        wrong = copy.deepcopy(document)
        wrong["spec"][field] = value
        assert any(word in line for line in _wrong(packages, [(kind, wrong)]))


def test_every_custom_resource_is_of_a_kind_that_is_known() -> None:
    assert {kind.kind for kind, _ in _by_kind()} == {kind.kind for kind in KINDS}
