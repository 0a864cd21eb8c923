"""Patches are applied as git applies them, and without a trace in the repository."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollout.data.swe.patch import parse_patch
from rollout.data.swe.trees import ApplyError, GitTree
from tests.executor.repositories import commit, new

Tree = dict[str, str]
MODIFY = "diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -2,3 +2,3 @@\n a\n-b\n+c\n d\n"


def git(folder: Path, *words: str, text: bytes = b"") -> bytes:
    return subprocess.run(["git", "-C", folder, *words], input=text, capture_output=True, check=True, timeout=60).stdout


def write_tree(folder: Path, tree: Tree) -> str:
    """The hash of git's tree of these files; nothing is written to the work tree."""
    entries = []
    for path, content in tree.items():
        blob = git(folder, "hash-object", "-w", "--stdin", text=content.encode("utf-8", "surrogateescape")).strip()
        entries.append(b"100644 blob " + blob + b"\t" + path.encode("utf-8", "surrogateescape") + b"\0")
    return git(folder, "mktree", "-z", text=b"".join(entries)).strip().decode()


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return new(tmp_path_factory.mktemp("repositories") / "one")


lines = st.lists(st.sampled_from(["a", "b", "c\r", "", "+", "-- x", "\\ No", "\x0c", "é\udcff"]), max_size=12)
contents = st.builds(lambda each, end: "\n".join(each) + end, lines, st.sampled_from(["", "\n"]))
trees = st.dictionaries(st.sampled_from(["a.py", "b c.py", 'd"é\t', "e", "\udcff\\"]), contents, max_size=4)


@given(trees, trees, st.sampled_from(["-U1", "-U3"]))
@settings(max_examples=25)
def test_diffs_of_git_lead_from_tree_to_tree(repository: Path, old: Tree, new: Tree, context: str) -> None:
    hashes = [write_tree(repository, tree) for tree in (old, new)]
    text = git(repository, "diff", "--text", "--full-index", context, "-M", *hashes).decode("utf-8", "surrogateescape")
    if text:
        with GitTree(repository, hashes[0]).patched(text) as patched:
            assert {path: patched.read(path) for path in old | new} == {path: new.get(path) for path in old | new}


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "x: does not exist in index"),
        ("0\na\nB\nd\n", "x: patch does not apply"),
        ("0\na\n", "x: patch does not apply"),
    ],
)
def test_what_does_not_fit_is_named(tmp_path: Path, content: str | None, problem: str) -> None:
    repository = new(tmp_path / "o")
    name = commit(repository, "one", {"other": ""} if content is None else {"x": content})
    with pytest.raises(ApplyError, match=problem), GitTree(repository, name).patched(MODIFY):
        pass


def test_a_patch_that_fits_at_other_lines_is_told_with_those(tmp_path: Path) -> None:
    repository = new(tmp_path / "o")
    tree = GitTree(repository, commit(repository, "one", {"x": "0\n1\n2\na\nb\nd\n", "y": "y"}))
    with tree.patched(MODIFY) as patched:
        assert patched.moved
        assert patched.read("x") == "0\n1\n2\na\nc\nd\n"
        (hunk,) = parse_patch(tree.difference(patched)).files[0].hunks
    assert (hunk.removed, hunk.added) == (((5, "b\n"),), ((5, "c\n"),))
    exact = GitTree(repository, commit(repository, "two", {"x": "0\na\nb\nd\n"}))
    with exact.patched(MODIFY) as patched:
        assert not patched.moved


def test_applying_leaves_no_trace_in_the_repository(tmp_path: Path) -> None:
    repository = new(tmp_path / "o")
    name = commit(repository, "one", {"x": "0\na\nb\nd\n"})
    before = sorted(repository.rglob("*"))
    with GitTree(repository, name).patched(MODIFY.removesuffix("\n")) as patched:
        assert (patched.read("x"), patched.read("y")) == ("0\na\nc\nd\n", None)
    assert sorted(repository.rglob("*")) == before
