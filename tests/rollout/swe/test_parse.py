"""Patches are read as git and diff mean them, and printed so that reading them again gives the same."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout.data.swe import ChangeKind, FilePatch, Hunk, Line, Patch, PatchError, parse_patch

GIT = "diff --git a/x b/x\n--- a/x\n+++ b/x\n"


def only(text: str) -> FilePatch:
    """The one file of a patch, which must print to a patch that is read the same."""
    patch = parse_patch(text)
    assert parse_patch(str(patch)) == patch
    assert patch.reversed().reversed() == patch or patch.files[0].kind is ChangeKind.COPIED
    assert len(patch.files) == 1
    return patch.files[0]


def texts(file: FilePatch) -> list[str]:
    return [line.mark + line.text for hunk in file.hunks for line in hunk.lines]


def test_lines_that_look_like_headers_are_lines() -> None:
    text = GIT + "@@ -1,2 +1,3 @@ SELECT\n--- comment\n-b\n+++ c\n+@@ -5,5 +6,6 @@\n+diff --git a/y b/y\n"
    file = only(text)
    assert texts(file) == ["--- comment\n", "-b\n", "+++ c\n", "+@@ -5,5 +6,6 @@\n", "+diff --git a/y b/y\n"]
    assert file.hunks[0].heading == " SELECT"
    assert str(file) == text


def test_a_reversed_hunk_has_removed_lines_before_added_ones() -> None:
    file = only(GIT + "@@ -1,4 +1,4 @@ f\n a\n-b\n-c\n+d\n+e\n f\n")
    assert str(file.reversed()) == GIT + "@@ -1,4 +1,4 @@ f\n a\n-d\n-e\n+b\n+c\n f\n"


def test_missing_counts_are_one() -> None:
    assert only(GIT + "@@ -3 +4 @@\n-a\n+b\n").hunks == (Hunk(3, 1, 4, 1, (Line("-", "a\n"), Line("+", "b\n"))),)


@pytest.mark.parametrize("between", ["a\r\n", "a\x0cb\n", "a\u2028b\x85\n", "a\rb\n", "\ud800"[:0] + "\udcff\n"])
def test_lines_end_at_newlines_alone(between: str) -> None:
    assert texts(only(f"{GIT}@@ -1,2 +1,2 @@\n {between}-b\r\n+c\n")) == [f" {between}", "-b\r\n", "+c\n"]


def test_a_patch_whose_newlines_were_converted_has_no_carriage_returns() -> None:
    plain = f"{GIT}@@ -1,3 +1,3 @@ f\n a\n\n-b\n+c\n"
    assert only(plain.replace("\n", "\r\n")) == only(plain)


def test_no_newline_at_the_end() -> None:
    file = only(GIT + "@@ -1 +1 @@\n-a\n\\ No newline at end of file\n+b\n\\ Kein Zeilenumbruch am Dateiende.\n")
    assert texts(file) == ["-a", "+b"]


def test_an_empty_line_whose_space_was_stripped_is_context() -> None:
    assert texts(only(GIT + "@@ -1,3 +1,3 @@\n a\n\n-b\n+c\n")) == [" a\n", " \n", "-b\n", "+c\n"]


@pytest.mark.parametrize(
    ("header", "kind", "old", "new"),
    [
        ("diff --git a/x b/x\nold mode 100644\nnew mode 100755\n", "modified", "x", "x"),
        ("diff --git a/x b/y\nsimilarity index 100%\nrename from x\nrename to y\n", "renamed", "x", "y"),
        ("diff --git a/x b/y\nsimilarity index 90%\ncopy from x\ncopy to y\n", "copied", "x", "y"),
        ("diff --git a/e b/e\nnew file mode 100644\nindex 0000000..e69de29\n", "added", None, "e"),
        ("diff --git a/e b/e\ndeleted file mode 100755\nindex e69de29..0000000\n", "deleted", "e", None),
        ("diff --git a/a b/c b/a b/c\nold mode 100644\nnew mode 100755\n", "modified", "a b/c", "a b/c"),
        ('diff --git "a/\\303\\251" "b/\\303\\251"\nold mode 100644\nnew mode 100755\n', "modified", "é", "é"),
        ('diff --git a/x "b/\\377"\nsimilarity index 9%\nrename from x\nrename to "\\377"\n', "renamed", "x", "\udcff"),
    ],
)  # fmt: skip
def test_files_without_hunks(header: str, kind: str, old: str | None, new: str | None) -> None:
    file = only(header)
    assert (file.kind, file.old_path, file.new_path, file.hunks) == (kind, old, new, ())
    assert str(file) == header


@pytest.mark.parametrize(
    "content",
    [
        "Binary files /dev/null and b/x.png differ\n",
        "GIT binary patch\nliteral 3\nKcmZ\n+++\n\nliteral 0\nHcmV?d00001\n\n",
    ],
)
def test_binary_files_are_known_as_such(content: str) -> None:
    header = "diff --git a/x.png b/x.png\nnew file mode 100644\nindex 0000000..1234567\n"
    patch = parse_patch(header + content + GIT + "@@ -0,0 +1 @@\n+a\n")
    assert [(file.path, file.kind, file.binary) for file in patch.files] == [
        ("x.png", ChangeKind.ADDED, True),
        ("x", ChangeKind.MODIFIED, False),
    ]
    assert parse_patch(str(patch)) == patch


@pytest.mark.parametrize(
    ("old", "new", "kind", "path"),
    [
        ("x.py.orig\t2020-01-01 00:00:00", "x.py\t2020-01-01 00:00:01.5 +0200", "modified", "x.py"),
        ("a/x y.py\t", "b/x y.py\t", "modified", "x y.py"),
        ("src/x.py", "src/x.py", "modified", "src/x.py"),
        ("jinja-3.1.3/src/x.py\t2020", "jinja-3.1.4/src/x.py\t2021", "modified", "src/x.py"),
        ("/dev/null", "b/x.py", "added", "x.py"),
        ("a/x.py", "/dev/null", "deleted", "x.py"),
        ("i/x.py", "w/x.py", "modified", "x.py"),
        ("old/x.py\t1970-01-01 01:00:00.000000000 +0100", "new/x.py\t2020-01-01", "added", "x.py"),
    ],
)
def test_plain_diffs(old: str, new: str, kind: str, path: str) -> None:
    counts = {"added": "-0,0 +1", "deleted": "-1 +0,0", "modified": "-1 +1"}[kind]
    lines = {"added": "+b\n", "deleted": "-a\n", "modified": "-a\n+b\n"}[kind]
    file = only(f"Index: x.py\n====\n--- {old}\n+++ {new}\n@@ {counts} @@\n{lines}")
    assert (file.kind, file.path) == (kind, path)


def test_a_mail_of_git_has_text_around_the_patch() -> None:
    text = f"From 1234 Mon Sep 17\nSubject: x\n---\n x | 2 +-\n\n{GIT}@@ -1 +1 @@\n-a\n+b\n-- \n2.39.5\n\n"
    assert texts(only(text)) == ["-a\n", "+b\n"]
    assert len(parse_patch(text + text).files) == 2


def test_no_text_has_no_files() -> None:
    assert parse_patch("").files == parse_patch("nothing\nhere\n").files == ()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (GIT + "@@ -1,3 +1,3 @@\n a\n-b\n", "line 7: the text ends, but the hunk in line 4 still needs 1 lines"),
        (GIT + "@@ -1,2 +1,2 @@\n a\n!b\n", "line 6: the hunk in line 4 still needs 1 lines .* but here is '!b'"),
        (GIT + "@@ -1 +1,2 @@\n-a\n-b\n", "line 6: the hunk in line 4 counted fewer lines of the old file"),
        (GIT + "@@ -1 +1 @@\n-a\n+b\n+c\n", "line 7: a file or a hunk was expected after the counted lines"),
        (GIT + "@@ -x +1 @@\n", "line 4: `@@ -START,COUNT"),
        (GIT + "nothing\n", "line 4: a hunk .* was expected after"),
        ("@@ -1 +1 @@\n-a\n+b\n", "line 1: a hunk, but no file before it"),
        ("diff --cc x\n", "line 1: a combined diff of a merge"),
        ("--- /dev/null\n+++ /dev/null\n@@ -1 +1 @@\n-a\n+b\n", "line 1: a file was expected"),
        ("diff --git a/x b/y\nrename from x\n", "line 1: `rename from` and `rename to` were expected"),
        ("diff --git a/x b/y\nold mode 100644\nnew mode 100755\n", "line 1: two names"),
        ("diff --git a/x b/x\nwhat?\n--- a/x\n", "line 2: `--- ` or a line of git's header was expected"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_with_its_line(text: str, problem: str) -> None:
    with pytest.raises(PatchError, match=problem):
        parse_patch(text)


names = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="/\0"), min_size=1, max_size=6).filter(
    lambda name: name not in (".", "..")
)
paths = st.lists(names, min_size=1, max_size=3).map("/".join)
content = st.text(st.sampled_from("ab+-@ \\\r\t\x0cé\udcff"), max_size=8)


@st.composite
def hunks(draw: st.DrawFn, old: bool, new: bool) -> Hunk:
    marks = st.sampled_from([mark for mark in " -+" if (old or mark == "+") and (new or mark == "-")])
    lines = [Line(draw(marks), draw(content) + "\n") for _ in range(draw(st.integers(1, 6)))]
    counts = [sum(line.mark in marks for line in lines) for marks in (" -", " +")]
    starts = st.integers(0, 99_999)
    return Hunk(
        draw(starts), counts[0], draw(starts), counts[1], tuple(lines), draw(st.sampled_from(["", " def f():"]))
    )


@st.composite
def files(draw: st.DrawFn) -> FilePatch:
    kind = draw(st.sampled_from(ChangeKind))
    old = draw(paths) if kind is not ChangeKind.ADDED else None
    moved = kind in (ChangeKind.RENAMED, ChangeKind.COPIED)
    new = None if kind is ChangeKind.DELETED else draw(paths.filter(lambda path: path != old)) if moved else old
    new = draw(paths) if kind is ChangeKind.ADDED else new
    changed = tuple(draw(st.lists(hunks(old is not None, new is not None), max_size=2)))
    blobs = draw(st.sampled_from([(None, None), ("0000000", "e69de29")]))
    modes = ("100644" if old else None, "100755" if new else None)
    binary = not changed and blobs[0] is not None and draw(st.booleans())
    return FilePatch(kind, old, new, changed, binary, *modes, *blobs, draw(st.integers(0, 100)) if moved else None)


@given(st.lists(files(), max_size=3).map(tuple).map(Patch))
def test_what_is_printed_is_read_the_same(patch: Patch) -> None:
    assert parse_patch(str(patch)) == patch


@given(st.text(st.sampled_from('ab \n-+@,1\\\r"')) | st.text())
def test_no_text_breaks_the_parser(text: str) -> None:
    for each in (text, GIT + text, GIT + "@@ -1,3 +1,3 @@\n" + text):
        with contextlib.suppress(PatchError):
            patch = parse_patch(each)
            assert parse_patch(str(patch)) == patch
