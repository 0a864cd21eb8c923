"""The store of repositories: real git, real sources, each fetched once and whole."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from pathlib import Path

import pytest

from fairbox.errors import ConfigError, FieldErrors
from rollout.data.repos import Checkout, FailureKind, RepoError, RepoStore, Want, row_want
from tests.executor import repositories
from tests.executor.repositories import SECRET, git

PATCH = """\
diff --git a/src/add.py b/src/add.py
--- a/src/add.py
+++ b/src/add.py
@@ -1,2 +1,2 @@
 def add(a, b):
-    return a - b
+    return a * b
"""


@pytest.fixture
def store(tmp_path: Path) -> RepoStore:
    return RepoStore(tmp_path / "store", timeout_s=60)


@pytest.fixture
def origin(tmp_path: Path) -> tuple[Path, str]:
    return repositories.project(tmp_path / "origin")


async def failure(store: RepoStore, want: Want) -> RepoError:
    with pytest.raises(RepoError) as caught:
        await store.make(want)
    return caught.value


def show(checkout: Checkout, path: str) -> str:
    return git(checkout.path, "show", f"{checkout.commit}:{path}")


def objects(checkout: Checkout) -> bytes:
    """The contents of every object of the mirror, reachable or not."""
    words = ["git", "--git-dir", str(checkout.path), "cat-file", "--batch", "--batch-all-objects", "--unordered"]
    return subprocess.run(words, capture_output=True, check=True).stdout


@pytest.mark.parametrize("form", ["path", "file", "bundle"])
async def test_a_commit_is_fetched_alone_where_the_source_gives_it(
    store: RepoStore, origin: tuple[Path, str], form: str, tmp_path: Path
) -> None:
    folder, base = origin
    (tmp_path / "all.bundle").write_bytes(repositories.bundle(folder))
    source = {"path": str(folder), "file": folder.as_uri(), "bundle": str(tmp_path / "all.bundle")}[form]
    checkout = await store.make(Want("ada/project", source, base))
    assert checkout == Checkout(store.folder / "mirrors" / "ada" / "project.git", base)
    assert show(checkout, "src/add.py") == "def add(a, b):\n    return a - b"
    assert checkout.workspace() == {"local_path": str(checkout.path), "commit": base}
    assert (SECRET.encode() in objects(checkout)) == (form == "bundle")  # which can only be had as a whole
    assert store.find(Want("ada/project", source, base)) == checkout


async def test_a_path_may_be_relative(
    store: RepoStore, origin: tuple[Path, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(origin[0].parent)
    want = Want("ada/project", origin[0].name)
    checkout = await store.make(want)
    monkeypatch.chdir("/")
    assert want == Want("ada/project", str(origin[0]))
    assert store.find(want) == checkout


async def test_all_commits_of_a_repository_come_in_one_fetch_and_missing_ones_are_named(
    store: RepoStore, origin: tuple[Path, str]
) -> None:
    folder, base = origin
    earlier = git(folder, "rev-parse", f"{base}~1")
    hashes = [base, "0" * 40, earlier, "1" * 40]
    wants = [Want("ada/project", folder.as_uri(), commit) for commit in hashes]
    made = await store.make_all("ada/project", wants)
    assert [made[want].commit for want in (wants[0], wants[2])] == [base, earlier]  # type: ignore[union-attr]
    for want in (wants[1], wants[3]):
        error = made[want]
        assert isinstance(error, RepoError)
        assert (error.kind, str(want.commit) in str(error)) == (FailureKind.MISSING, True)
        assert store.find(want) is None
    packs = store.folder / "mirrors" / "ada" / "project.git" / "objects" / "pack"
    assert len(list(packs.glob("*.pack"))) == 1


async def test_the_default_branch_stays_what_it_was_when_it_was_fetched(
    store: RepoStore, origin: tuple[Path, str]
) -> None:
    folder, _ = origin
    want = Want("ada/project", str(folder))
    first = await store.make(want)
    repositories.commit(folder, "later", {"new.txt": b"new"})
    assert await store.make(want) == first
    assert first.commit == git(folder, "rev-parse", "HEAD~1")
    shutil.rmtree(folder)
    assert await store.make(want) == first


async def test_a_patch_gives_the_same_commit_over_every_source_and_no_way_back(
    store: RepoStore, origin: tuple[Path, str]
) -> None:
    folder, base = origin
    patched = await store.make(Want("ada/project", str(folder), base, PATCH))
    git(folder, "worktree", "add", "--quiet", str(folder.parent / "tree"), base)
    again = await store.make(Want("ada/other", str(folder.parent / "tree"), base, PATCH))
    assert patched.commit == again.commit != base
    assert show(patched, "src/add.py").endswith("a * b")
    assert git(patched.path, "rev-list", patched.commit) == patched.commit
    assert (await failure(store, Want("ada/project", str(folder), base, PATCH.replace("- b", "- c")))).kind == "patch"
    assert (await failure(store, Want("ada/project", str(folder), base, "no diff"))).kind == "patch"


async def test_what_is_no_source_is_said(store: RepoStore, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("x")
    (tmp_path / "folder").mkdir()
    cases = {"notes.txt": "source", "folder": "source", "gone": "missing"}
    for name, kind in cases.items():
        error = await failure(store, Want("ada/bad", str(tmp_path / name)))
        assert (error.kind, str(tmp_path / name) in str(error)) == (kind, True), error
    assert (await failure(store, Want("ada/bad", (tmp_path / "gone").as_uri()))).kind is FailureKind.SOURCE


async def test_calls_for_one_want_share_the_work_also_when_the_first_is_cancelled(
    store: RepoStore, origin: tuple[Path, str], tmp_path: Path
) -> None:
    want = Want("ada/project", str(origin[0]), origin[1])
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        calls = [tasks.create_task(store.make(want)) for _ in range(8)]
        await asyncio.sleep(0)
        calls[0].cancel()
    assert len({call.result() for call in calls[1:]}) == 1
    packs = list((store.folder / "mirrors" / "ada" / "project.git" / "objects" / "pack").glob("*.pack"))
    assert len(packs) == 1
    bad = Want("ada/none", str(tmp_path / "none"), "0" * 40)
    errors = await asyncio.gather(*(store.make(bad) for _ in range(3)), return_exceptions=True)
    assert {str(error) for error in errors} == {f"{tmp_path / 'none'} is not there"}


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"repo": "../x"}, "repo is '../x'"),
        ({"repo": "a/.hidden"}, "must be like owner/name"),
        ({"repo": "a.git/b"}, "must be like owner/name"),
        ({"commit": "main"}, "base_commit is 'main', must be the whole hash"),
        ({"source": "--upload-pack=x"}, "source is '--upload-pack=x'"),
        ({"patch": "\0"}, "patch holds a null"),
    ],
)
def test_wants_that_can_not_be_are_refused_before_any_work(fields: dict[str, str], problem: str) -> None:
    with pytest.raises(FieldErrors, match=problem.replace("(", r"\(")):
        Want(**{"repo": "a/b", "source": "/srv"} | fields)


def test_rows_say_what_is_wanted() -> None:
    row = {"instance_id": "i", "repo": "pallets/jinja", "base_commit": "a" * 40, "patch": PATCH}
    url = "https://github.com/{repo}.git"
    assert row_want(row, url) == Want("pallets/jinja", "https://github.com/pallets/jinja.git", "a" * 40)
    smith = row | {"use_patch": True, "base_commit": None}
    assert row_want(smith, "/srv/{owner}__{name}") == Want("pallets/jinja", "/srv/pallets__jinja", None, PATCH)
    for bad, problem in (
        (row | {"use_patch": True, "patch": None}, "patch is None"),
        (row | {"repo": None}, "repo is None"),
        (row | {"base_commit": 3}, "base_commit is 3"),
        (row | {"instance_id": "../../etc"}, "another folder"),
    ):
        with pytest.raises(FieldErrors, match=problem):
            row_want(bad, "/srv/{instance_id}")


def test_settings_that_can_not_be_are_errors(tmp_path: Path) -> None:
    for settings, problem in (({"parallel": 0}, "parallel is 0"), ({"timeout_s": 0}, "timeout_s is 0")):
        with pytest.raises(ConfigError, match=problem):
            RepoStore(tmp_path, **settings)
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="can't be used"):
        RepoStore(tmp_path / "file")
