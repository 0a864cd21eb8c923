"""Truths of patches."""

from __future__ import annotations

import difflib

import pytest

from rollout.data.swe import Changes, Dialect, TruthError, parse_patch, truth

OLD = '''\
import os
LIMIT = 1


class Box:
    """A box.

    Of things.
    """

    size = 1

    @property
    def area(self):
        return 1

    def grow(self):
        return 2


def helper():
    def inner():
        return 3
    return inner
'''


def diff(old: str, new: str, path: str = "m.py", context: int = 3) -> str:
    sides = (old.splitlines(True), new.splitlines(True))
    lines = list(difflib.unified_diff(*sides, f"a/{path}", f"b/{path}", n=context))
    return f"diff --git a/{path} b/{path}\n" + "".join(lines) if lines else ""


def changes(old: str, new: str, dialect: Dialect) -> Changes:
    [change] = truth(parse_patch(diff(old, new)), {"m.py": old}.get, {"m.py": new}.get, dialect)
    assert change.file == "m.py"
    return change.changes


def named(*names: str) -> tuple[str, ...]:
    return tuple(f"m.py:{name}" for name in names)


@pytest.mark.parametrize("dialect", Dialect)
@pytest.mark.parametrize(
    ("before", "after", "entity"),
    [
        ("return 2", "return 4", "Box.grow"),
        ("return 3", "return 4", "helper"),  # of nested functions the outermost
        ("    def grow(self):", "    def grow(self, by=1):", "Box.grow"),
        ("return 1\n", "return 1\n\n    async def shrink(self):\n        pass\n", "Box.shrink"),
    ],
)
def test_edited_and_added_entities(before: str, after: str, entity: str, dialect: Dialect) -> None:
    found = changes(OLD, OLD.replace(before, after), dialect)
    module = named(entity.partition(".")[0])
    if entity != "Box.shrink":
        assert found == Changes(edited_entities=named(entity), edited_modules=module)
    elif dialect is Dialect.LOCAGENT:
        assert found == Changes(added_entities=named(entity), added_modules=module)
    else:
        assert found == Changes(added_entities=named(entity), edited_modules=module)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("import os", "import os.path"),
        ("LIMIT = 1", "LIMIT = 2"),
        ("LIMIT = 1", "# a comment\nLIMIT = 1"),
        ("return 2", "return 2\n        # a comment"),
        ("return 2", "return 2\n\n\n"),
        ("    Of things.", "    Of other things."),
        ("LIMIT = 1", "LIMIT = 1\nprint(LIMIT)"),
    ],
)
@pytest.mark.parametrize("dialect", Dialect)
def test_lines_that_say_nothing_leave_the_file_alone_in_the_truth(before: str, after: str, dialect: Dialect) -> None:
    assert changes(OLD, OLD.replace(before, after), dialect) == Changes()


def test_lines_of_a_class_outside_of_its_methods_are_where_the_dialects_differ() -> None:
    for after in (OLD.replace("size = 1", "size = 2"), OLD.replace("    @property\n", "")):
        assert changes(OLD, after, Dialect.LOCAGENT) == Changes()
        assert changes(OLD, after, Dialect.CODESCOUT) == Changes(edited_modules=named("Box"))


def test_a_docstring_is_as_long_as_it_is_without_blank_lines_at_its_ends() -> None:
    after = OLD.replace('    """\n\n    size', '    """  # its last line\n\n    size')
    assert changes(OLD, after, Dialect.CODESCOUT) == Changes(edited_modules=named("Box"))


def test_a_new_class_is_an_added_module() -> None:
    new = OLD + "\n\nclass Lid:\n    kind = 1\n\n    def __init__(self):\n        pass\n"
    for dialect in Dialect:
        assert changes(OLD, new, dialect) == Changes(added_entities=named("Lid.__init__"), added_modules=named("Lid"))


def test_a_function_with_the_name_of_a_method_is_missing_as_in_the_data() -> None:
    old = OLD + "\n\ndef grow():\n    return 5\n"
    assert changes(old, old.replace("return 5", "return 6"), Dialect.LOCAGENT) == Changes()


def test_files_are_named_as_in_the_searched_tree() -> None:
    renamed = "diff --git a/old.py b/new.py\nsimilarity index 90%\nrename from old.py\nrename to new.py\n"
    renamed += "--- a/old.py\n+++ b/new.py\n@@ -2 +2 @@ def f():\n-    return 1\n+    return 2\n"
    added = "diff --git a/c.py b/c.py\nnew file mode 100644\n--- /dev/null\n+++ b/c.py\n@@ -0,0 +1 @@\n+def g(): pass\n"
    deleted = (
        "diff --git a/d.py b/d.py\ndeleted file mode 100644\n--- a/d.py\n+++ /dev/null\n@@ -1 +0,0 @@\n-def h(): pass\n"
    )
    tree = {"old.py": "def f():\n    return 1\n", "d.py": "def h(): pass\n"}
    text = diff("a\n", "b\n", "notes.txt")
    after = {"new.py": "def f():\n    return 2\n", "c.py": "def g(): pass\n"}
    found = truth(parse_patch(renamed + added + deleted + text), tree.get, after.get, Dialect.CODESCOUT)
    assert [(each.file, each.changes) for each in found] == [
        ("old.py", Changes(edited_entities=("old.py:f",), edited_modules=("old.py:f",))),
        ("c.py", Changes(added_entities=("c.py:g",), added_modules=("c.py:g",))),
        ("d.py", Changes(edited_entities=("d.py:h",), edited_modules=("d.py:h",))),
    ]


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("print 'x'\n", "print('x')\n", r"m.py \(before the patch\): line 1: can't be parsed as Python"),
        ("x = 1\n", "x = (\n", r"m.py \(after the patch\): line 1: can't be parsed as Python"),
        ("x = 1\n", "x = '\0'\n", r"m.py \(after the patch\): .*null bytes"),
    ],
)
def test_what_can_not_be_parsed_has_no_truth(old: str, new: str, problem: str) -> None:
    with pytest.raises(TruthError, match=problem):
        changes(old, new, Dialect.CODESCOUT)
