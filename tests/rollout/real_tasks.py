"""Real code search tasks: rows of SWE-smith over the sources of packages from PyPI, as git workspaces.

The rows are those of `FAIRBOX_DATA`/swe_smith/code_search.parquet whose patch applies to the package's source archive.
The archives are taken from `FAIRBOX_SDISTS`, or fetched by pip into the cache of the user, once, and each is made a
repository of one commit beside it; tests are skipped with the reason where neither is to be had.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import re
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from rollout.data.repos import Checkout, RepoError, RepoStore, Want, row_want
from tests.executor import repositories

PACKAGES = {
    "r1chardj0n3s__parse": "parse==1.20.2",
    "python-hyper__h11": "h11==0.14.0",
    "tkrajina__gpxpy": "gpxpy==1.6.2",
    "bottlepy__bottle": "bottle==0.13.2",
    "pallets__jinja": "jinja2==3.1.4",
    "spulec__freezegun": "freezegun==1.5.1",
    "life4__textdistance": "textdistance==4.6.3",
    "jd__tenacity": "tenacity==9.0.0",
    "adrienverge__yamllint": "yamllint==1.35.1",
    "rsalmei__alive-progress": "alive-progress==3.2.0",
    "Suor__funcy": "funcy==2.0",
    "marshmallow-code__webargs": "webargs==8.6.0",
    "mahmoud__boltons": "boltons==24.1.0",
}
"""Repository, without its owner `swesmith` and without its hash, and the package that has the same files."""
_SHA256 = {
    "parse==1.20.2": "b41d604d16503c79d81af5165155c0b20f6c8d6c559efa66b4b695c3e5a0a0ce",
    "h11==0.14.0": "8f19fbbe99e72420ff35c00b27a34cb9937e902a8b810e2c88300c6f0a3b699d",
    "gpxpy==1.6.2": "a72c484b97ec42b80834353b029cc8ee1b79f0ffca1179b2210bb3baf26c01ae",
    "bottle==0.13.2": "e53803b9d298c7d343d00ba7d27b0059415f04b9f6f40b8d58b5bf914ba9d348",
    "jinja2==3.1.4": "4a3aee7acbbe7303aede8e9648d13b8bf88a429282aa6122a993f0ac800cb369",
    "freezegun==1.5.1": "b29dedfcda6d5e8e083ce71b2b542753ad48cfec44037b3fc79702e2980a89e9",
    "textdistance==4.6.3": "d6dabc50b4ea832cdcf0e1e6021bd0c7fcd9ade155888d79bb6a3c31fce2dc6f",
    "tenacity==9.0.0": "807f37ca97d62aa361264d497b0e31e92b8027044942bfa756160d908320d73b",
    "yamllint==1.35.1": "7a003809f88324fd2c877734f2d575ee7881dd9043360657cc8049c809eba6cd",
    "alive-progress==3.2.0": "ede29d046ff454fe56b941f686f89dd9389430c4a5b7658e445cb0b80e0e4deb",
    "funcy==2.0": "3963315d59d41c6f30c04bc910e10ab50a3ac4a225868bfa96feed133df075cb",
    "webargs==8.6.0": "b8d098ab92bd74c659eca705afa31d681475f218cb15c1e57271fa2103c0547a",
    "boltons==24.1.0": "4a49b7d57ee055b83a458c8682a2a6f199d263a8aa517098bda9bab813554b87",
}
"""Hashes of the source archives."""
_DOWNLOAD_S = 100.0
_unreachable: list[str] = []
"""Reason why PyPI can't be reached, once known, so that later tests need not wait for it."""


@dataclass(frozen=True, slots=True)
class RealTask:
    """A row, and the repository in the state that it speaks of."""

    row: dict[str, Any]
    want: Want
    checkout: Checkout

    @property
    def files(self) -> set[str]:
        """The answer."""
        return {change["file"] for change in self.row["file_changes"]}


def real_rows() -> list[dict[str, Any]]:
    """Rows with an archive, those of different packages first: 20 of them, over 13 packages."""
    parquet = pytest.importorskip("pyarrow.parquet", reason="rows are in parquet: pyarrow is not installed")
    path = Path(os.environ.get("FAIRBOX_DATA", "")) / "swe_smith" / "code_search.parquet"
    if not os.environ.get("FAIRBOX_DATA") or not path.is_file():
        pytest.skip("no rows: set FAIRBOX_DATA to a folder with swe_smith/code_search.parquet")
    rows: list[dict[str, Any]] = parquet.read_table(path).to_pylist()
    by_package = [[row for row in rows if _package(row) == package] for package in PACKAGES]
    return [row for turn in itertools.zip_longest(*by_package) for row in turn if row is not None]


async def real_tasks(store: RepoStore, count: int, source: str | None = None) -> list[RealTask]:
    """The first `count` rows as tasks, their repositories made in `store`, from `source` or from the origins."""
    rows = real_rows()[:count]
    assert len(rows) == count
    wants = [row_want(row, source or str(origin(row))) for row in rows]
    made: dict[Want, Checkout | RepoError] = {}
    for repo in dict.fromkeys(want.repo for want in wants):
        made |= await store.make_all(repo, [want for want in wants if want.repo == repo])
    return [RealTask(row, want, _there(made[want])) for row, want in zip(rows, wants, strict=True)]


def _sdist(package: str) -> Path:
    """The source archive of one of PACKAGES, checked."""
    requirement = PACKAGES[package]
    folder = Path(os.environ.get("FAIRBOX_SDISTS") or _cache() / "sdists")
    folder.mkdir(parents=True, exist_ok=True)
    if (found := _found(folder, requirement)) is not None:
        return found
    if _unreachable:
        pytest.skip(_unreachable[0])
    name = requirement.partition("==")[0]
    with tempfile.TemporaryDirectory(dir=folder) as place:  # another process may look into the folder meanwhile
        # Only this package as source: what builds its metadata comes as wheels.
        words = ["download", "--quiet", "--no-deps", "--no-binary", name, "--dest", place, requirement]
        try:
            done = subprocess.run(
                [sys.executable, "-m", "pip", *words], capture_output=True, text=True, timeout=_DOWNLOAD_S, check=False
            )
            said = done.stderr.strip().rpartition("\n")[2]
            for archive in Path(place).iterdir():
                archive.rename(folder / archive.name)
        except subprocess.TimeoutExpired:
            said = f"no answer within {_DOWNLOAD_S:g} s"
    if (found := _found(folder, requirement)) is not None:
        return found
    _unreachable.append(f"no source archives: {said}; set FAIRBOX_SDISTS to a folder with {requirement} and its like")
    pytest.skip(_unreachable[0])


def origin(row: dict[str, Any]) -> Path:
    """A git repository of one commit: the source archive of the row's repository, unpacked."""
    archive = _sdist(_package(row))
    folder = archive.with_name(archive.name.removesuffix(".tar.gz") + ".git-origin")
    if not folder.exists():
        with tempfile.TemporaryDirectory(dir=folder.parent) as place, tarfile.open(archive) as tar:
            tar.extractall(place, filter="data")
            (top,) = Path(place).iterdir()
            repositories.git(top, "init", "--quiet", "--initial-branch=main")
            repositories.git(top, "add", "--all", "--force")
            repositories.git(top, "commit", "--quiet", "--message", archive.name)
            with contextlib.suppress(OSError):  # another process was first
                top.rename(folder)
    return folder


def _there(made: Checkout | RepoError) -> Checkout:
    assert isinstance(made, Checkout), made
    return made


def _package(row: dict[str, Any]) -> str:
    return str(row["repo"]).partition("/")[2].rpartition(".")[0]


def _found(folder: Path, requirement: str) -> Path | None:
    """The archive of a requirement; its name is written in several ways."""
    name, _, version = requirement.partition("==")
    for path in sorted(folder.glob(f"*-{version}.tar.gz")):
        if re.sub(r"[-_.]+", "-", path.name.removesuffix(f"-{version}.tar.gz")).lower() == name:
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            assert digest == _SHA256[requirement], f"{path} is another archive than expected"
            return path
    return None


def _cache() -> Path:
    return Path(os.environ.get("FAIRBOX_CACHE") or "~/.cache/fairbox").expanduser()
