"""Line targets: the forms of both columns, on patches that other readers take for something else."""

from __future__ import annotations

import ast

from rollout.data.swe import hunk_targets, parse_patch, target_column

MOTO = """\
diff --git a/moto/rds/exceptions.py b/moto/rds/exceptions.py
--- a/moto/rds/exceptions.py
+++ b/moto/rds/exceptions.py
@@ -82,6 +82,7 @@
 a
 b
 c
+d
 e
 f
 g
diff --git a/moto/rds/models.py b/moto/rds/models.py
--- a/moto/rds/models.py
+++ b/moto/rds/models.py
@@ -19,6 +19,7 @@
 a
 b
 c
+d
 e
 f
 g
@@ -2339,7 +2340,6 @@ def f():
 a
 b
 c
-d
 e
 f
 g
"""
TRICKY = """\
diff --git a/a.py b/a.py
--- a/a.py
+++ b/a.py
@@ -1,3 +1,4 @@
 a
+b
 c
 d
@@ -10 +11,0 @@
-e
diff --git a/b.py b/b.py
deleted file mode 100644
--- a/b.py
+++ /dev/null
@@ -1,2 +0,0 @@
-a
-b
diff --git a/new.py b/new.py
new file mode 100644
--- /dev/null
+++ b/new.py
@@ -0,0 +1,2 @@
+@@ -5,5 +6,6 @@
+b
"""


def test_hunks_of_a_patch() -> None:
    targets = [("moto/rds/exceptions.py", [82, 6]), ("moto/rds/models.py", [19, 6]), ("moto/rds/models.py", [2339, 7])]
    assert hunk_targets(parse_patch(MOTO)) == targets
    assert ast.literal_eval(target_column(parse_patch(MOTO))) == targets


def test_hunks_of_a_deleted_file_are_its_own() -> None:
    assert hunk_targets(parse_patch(TRICKY)) == [
        ("a.py", [1, 3]),
        ("a.py", [10, 1]),
        ("b.py", [1, 2]),
        ("new.py", [0, 0]),
    ]


def test_hunks_of_a_renamed_file_have_its_old_name() -> None:
    text = "diff --git a/x.py b/y.py\nsimilarity index 90%\nrename from x.py\nrename to y.py\n"
    text += "--- a/x.py\n+++ b/y.py\n@@ -1 +1 @@\n-a\n+b\n"
    assert hunk_targets(parse_patch(text)) == [("x.py", [1, 1])]


def test_files_without_hunks_have_no_targets() -> None:
    patch = parse_patch("diff --git a/x b/x\nold mode 100644\nnew mode 100755\n")
    assert hunk_targets(patch) == []
