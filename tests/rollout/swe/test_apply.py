"""Patches are applied as git applies them: to the trees that git made them of, and back."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollout.data.swe import ApplyError, Patch, apply_patch, parse_patch

Tree = dict[str, str]


def apply(patch: Patch, tree: Tree) -> Tree:
    """The tree afterwards."""
    after: dict[str, str | None] = {**tree, **apply_patch(patch, tree.get)}
    return {path: text for path, text in after.items() if text is not None}


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
    folder = tmp_path_factory.mktemp("repository")
    git(folder, "init", "-q")
    return folder


lines = st.lists(
    st.sampled_from(["a", "b", "c\r", "", "+", "-- x", "@@ -1 +1 @@", "\\ No", "\x0c", "é\udcff"]), max_size=12
)
contents = st.builds(lambda each, end: "\n".join(each) + end, lines, st.sampled_from(["", "\n"]))
trees = st.dictionaries(st.sampled_from(["a.py", "b c.py", 'd"é\t', "e", "\udcff\\"]), contents, max_size=4)


@given(trees, trees, st.sampled_from(["-U0", "-U1", "-U3"]), st.sampled_from(["-M", "-C", "--find-copies-harder"]))
@settings(max_examples=40)
def test_diffs_of_git_lead_from_tree_to_tree(repository: Path, old: Tree, new: Tree, context: str, moves: str) -> None:
    hashes = [write_tree(repository, tree) for tree in (old, new)]
    text = git(repository, "diff", "--text", "--full-index", context, moves, *hashes)
    patch = parse_patch(text.decode("utf-8", "surrogateescape"))
    assert parse_patch(str(patch)) == patch
    assert apply(patch, old) == new
    assert apply(patch.reversed(), new) == old


def test_files_that_change_places_are_taken_from_the_tree_before() -> None:
    rename = "diff --git a/{0} b/{1}\nsimilarity index 100%\nrename from {0}\nrename to {1}\n"
    patch = parse_patch(rename.format("x", "y") + rename.format("y", "x"))
    assert apply(patch, {"x": "1\n", "y": "2\n"}) == {"x": "2\n", "y": "1\n"}


def test_patches_after_each_other_build_on_each_other() -> None:
    step = "--- a/x\n+++ b/x\n@@ -1 +1 @@\n-{0}\n+{1}\n"
    patch = parse_patch(step.format(1, 2) + step.format(2, 3))
    assert apply(patch, {"x": "1\n"}) == {"x": "3\n"}
    assert apply(patch.reversed(), {"x": "3\n"}) == {"x": "1\n"}


MODIFY = "--- a/x\n+++ b/x\n@@ -1,2 +1,2 @@\n a\n-b\n+c\n"


@pytest.mark.parametrize(
    ("text", "tree", "problem"),
    [
        (MODIFY, {}, "x: is to be modified, but is not there"),
        (MODIFY, {"x": "a\nB\n"}, r"x: hunk 1 expects 'b\\n' in line 2, but there is 'B\\n'"),
        (MODIFY, {"x": "a\n"}, r"x: hunk 1 expects 'b\\n' in line 2, but there is the end of the file"),
        (MODIFY, {"x": "a\nb"}, r"x: hunk 1 expects 'b\\n' in line 2, but there is 'b'"),
        (MODIFY, {"x": "0\na\nb\n"}, r"x: hunk 1 expects 'a\\n' in line 1, but there is '0\\n'"),
        ("--- a/x\n+++ b/x\n@@ -5,0 +6 @@\n+c\n", {"x": "a\n"}, "x: hunk 1 begins in line 5, but there are 1 lines"),
        (MODIFY + "@@ -2 +2 @@\n-b\n+d\n", {"x": "a\nb\n"}, "x: hunk 2 begins in line 2, before the end of another"),
        ("--- /dev/null\n+++ b/x\n@@ -0,0 +1 @@\n+c\n", {"x": ""}, "x: is to be added, but is there already"),
        ("--- a/x\n+++ /dev/null\n@@ -1 +0,0 @@\n-a\n", {"x": "a\nb\n"}, "x: is to be deleted, but has 1 lines more"),
        ("diff --git a/x b/x\nBinary files a/x and b/x differ\n", {"x": "a"}, "x: is binary"),
        (
            "--- a/x\n+++ b/x\n@@ -1,0 +2 @@\n+c\n\\ No newline at end of file\n",
            {"x": "a\nb\n"},
            "x: a line without newline is not the last one",
        ),
    ],
)
def test_what_does_not_fit_is_named(text: str, tree: Tree, problem: str) -> None:
    with pytest.raises(ApplyError, match=problem):
        apply(parse_patch(text), tree)
