"""Patches are read as git and diff mean them."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout.data.swe import FilePatch, Hunk, PatchError, parse_patch

GIT = "diff --git a/x b/x\n--- a/x\n+++ b/x\n"


def only(text: str) -> FilePatch:
    """The one file of a patch."""
    patch = parse_patch(text)
    assert patch.reversed().reversed() == patch
    assert len(patch.files) == 1
    return patch.files[0]


def test_lines_that_look_like_headers_are_lines() -> None:
    text = GIT + "@@ -1,2 +1,3 @@ SELECT\n--- comment\n-b\n+++ c\n+@@ -5,5 +6,6 @@\n+diff --git a/y b/y\n"
    removed = ((1, "-- comment\n"), (2, "b\n"))
    added = ((1, "++ c\n"), (2, "@@ -5,5 +6,6 @@\n"), (3, "diff --git a/y b/y\n"))
    assert only(text).hunks == (Hunk(1, 2, 1, 3, removed, added),)


@pytest.mark.parametrize("between", ["a\r\n", "a\x0cb\n", "a\u2028b\x85\n", "a\rb\n", "\udcff\n"])
def test_lines_end_at_newlines_alone(between: str) -> None:
    (hunk,) = only(f"{GIT}@@ -1,2 +1,2 @@\n {between}-b\r\n+c\n").hunks
    assert (hunk.removed, hunk.added) == (((2, "b\r\n"),), ((2, "c\n"),))


@pytest.mark.parametrize(
    ("header", "old", "new"),
    [
        ("diff --git a/x b/x\nold mode 100644\nnew mode 100755\n", "x", "x"),
        ("diff --git a/x b/y\nsimilarity index 100%\nrename from x\nrename to y\n", "x", "y"),
        ("diff --git a/e b/e\nnew file mode 100644\nindex 0000000..e69de29\n", None, "e"),
        ("diff --git a/e b/e\ndeleted file mode 100755\nindex e69de29..0000000\n", "e", None),
        ("diff --git a/a b.py b/a b.py\nold mode 100644\nnew mode 100755\n", "a b.py", "a b.py"),
    ],
)
def test_files_without_hunks(header: str, old: str | None, new: str | None) -> None:
    assert only(header) == FilePatch(old, new)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("a/x y.py\t", "b/x y.py\t", ("x y.py", "x y.py")),
        ("src/x.py", "src/x.py", ("src/x.py", "src/x.py")),
        ("/dev/null", "b/x.py", (None, "x.py")),
        ("a/x.py", "/dev/null", ("x.py", None)),
        ("i/x.py", "w/x.py", ("x.py", "x.py")),
    ],
)
def test_plain_diffs(old: str, new: str, expected: tuple[str | None, str | None]) -> None:
    file = only(f"Index: x.py\n====\n--- {old}\n+++ {new}\n@@ -1 +1 @@\n-a\n+b\n")
    assert (file.old_path, file.new_path) == expected


def test_no_text_has_no_files() -> None:
    assert parse_patch("").files == parse_patch("nothing\nhere\n").files == ()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (GIT + "@@ -1,3 +1,3 @@\n a\n-b\n", "Hunk is shorter than expected"),
        (GIT + "@@ -1,2 +1,2 @@\n a\n!b\n", "Hunk diff line expected: !b"),
        (GIT + "@@ -1 +1,2 @@\n-a\n-b\n", "Hunk is longer than expected"),
        ("@@ -1 +1 @@\n-a\n+b\n", "Unexpected hunk found"),
        ("--- /dev/null\n+++ /dev/null\n@@ -1 +1 @@\n-a\n+b\n", "a file was expected"),
    ],
)
def test_what_is_wrong_is_named(text: str, problem: str) -> None:
    with pytest.raises(PatchError, match=problem):
        parse_patch(text)


@given(st.text(st.sampled_from('ab \n-+@,1\\\r"')) | st.text())
def test_no_text_breaks_the_parser(text: str) -> None:
    for each in (text, GIT + text, GIT + "@@ -1,3 +1,3 @@\n" + text):
        with contextlib.suppress(PatchError):
            parse_patch(each)
