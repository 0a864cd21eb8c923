"""Rows become tasks or are left out with a reason, and the truth is made of the source that the patch fits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet

from fairbox.errors import ConfigError
from rollout.data.records import DataError
from rollout.data.swe import Changes, Dialect, FileChange
from rollout.data.swe.build import Built, Why, build
from rollout.data.swe.rows import changes_column, read_changes_column, split, write_search_tasks
from rollout.data.swe.trees import Clones
from tests.executor.repositories import commit, git, new

OLD, NEW = "def f():\n    return 1\n", "def f():\n    return 2\n"
PATCH = "diff --git a/p/m.py b/p/m.py\n--- a/p/m.py\n+++ b/p/m.py\n"
PATCH += "@@ -1,2 +1,2 @@\n def f():\n-    return 1\n+    return 2\n"
TRUTH = (FileChange("p/m.py", Changes(edited_entities=("p/m.py:f",), edited_modules=("p/m.py:f",))),)


def row(**columns: Any) -> dict[str, Any]:
    each = {"instance_id": "i", "repo": "o/proj", "base_commit": "c", "problem_statement": "it fails", "patch": PATCH}
    return {key: value for key, value in (each | columns).items() if value != "absent"}


def built(*rows: Any, clones: Clones | None = None, **options: Any) -> Built:
    return build([(f"rows:{number}", each) for number, each in enumerate(rows, 1)], clones, **options)


@pytest.fixture
def clones(tmp_path: Path) -> Clones:
    """One repository o/proj, whose p/m.py is OLD."""
    commit(new(tmp_path / "clones" / "o__proj"), "old", {"p/m.py": OLD})
    return Clones(tmp_path / "clones")


def test_a_row_without_sources_keeps_what_it_has() -> None:
    [task] = built(row(file_changes=changes_column(TRUTH))).tasks
    assert task.record() == {
        "instance_id": "i",
        "repo": "o/proj",
        "base_commit": "c",
        "problem_statement": "it fails",
        "patch": PATCH,
        "use_patch": False,
        "target": "[('p/m.py', [1, 2])]",
        "file_changes": [
            {
                "file": "p/m.py",
                "changes": {
                    "added_entities": None,
                    "added_modules": None,
                    "edited_entities": ["p/m.py:f"],
                    "edited_modules": ["p/m.py:f"],
                },
            }
        ],
        "prompt": [{"role": "user", "content": "it fails"}],
    }
    assert built(row()).tasks[0].record()["file_changes"] is None


@pytest.mark.parametrize(
    ("columns", "why", "problem"),
    [
        ({"instance_id": "absent"}, Why.BAD_ROW, "instance_id must be a text that is not empty, but is 'None'"),
        ({"repo": 3}, Why.BAD_ROW, "repo must be a text"),
        ({"problem_statement": " \n"}, Why.BLANK, "problem_statement is blank"),
        ({"problem_statement": None}, Why.BLANK, "problem_statement is blank"),
        ({"base_commit": 5}, Why.BAD_ROW, "base_commit must be a commit or null, but is '5'"),
        ({"use_patch": "no"}, Why.BAD_ROW, "use_patch must be true or false, but is 'no'"),
        ({"file_changes": "[]"}, Why.BAD_ROW, "file_changes must be a list, but is str"),
        ({"file_changes": [{"file": 1}]}, Why.BAD_ROW, "file_changes[0] must have a file"),
        ({"file_changes": [{"file": "a", "changes": {"x": []}}]}, Why.BAD_ROW, "file_changes[0].changes.x is none of"),
        ({"patch": "nothing"}, Why.BAD_PATCH, "patch: has no files"),
        ({"patch": PATCH.replace("-1,2", "-1,9")}, Why.BAD_PATCH, "patch: Hunk is shorter than expected"),
        ({"patch": PATCH.replace(".py", ".txt")}, Why.NO_PYTHON, "patch: changes p/m.txt, and no .py file"),
    ],
)
def test_a_bad_row_is_left_out_with_its_reason(columns: dict[str, Any], why: Why, problem: str) -> None:
    found = built(row(instance_id="good"), row(**columns))
    assert [task.instance_id for task in found.tasks] == ["good"]
    [left] = found.left
    assert (left.where, left.why) == ("rows:2", why)
    assert problem in left.problem


def test_rows_that_are_no_objects_or_come_twice_are_left_out() -> None:
    found = built([], row(), row(), row(instance_id="j"))
    assert [(left.where, left.why) for left in found.left] == [
        ("rows:1", Why.BAD_ROW),
        ("rows:3", Why.TWICE),
    ]


def test_truth_is_made_of_the_commit_in_a_clone(tmp_path: Path) -> None:
    repository = new(tmp_path / "o__proj")
    base = commit(repository, "base", {"p/m.py": OLD})
    commit(repository, "later", {"p/m.py": NEW})
    other = row(instance_id="j", base_commit="HEAD")
    found = built(row(base_commit=base), other, row(instance_id="k"), clones=Clones(tmp_path))
    assert [(task.instance_id, task.file_changes) for task in found.tasks] == [("i", TRUTH), ("k", None)]
    assert [(left.instance_id, left.why) for left in found.left] == [("j", Why.DOES_NOT_FIT)]
    assert "p/m.py: patch does not apply" in found.left[0].problem
    git(repository, "clone", "-q", "--bare", str(repository), str(tmp_path / "other" / "proj.git"))
    bare = built(row(repo="other/proj", base_commit=base), clones=Clones(tmp_path))
    assert bare.tasks[0].file_changes == TRUTH


def test_a_patch_that_makes_the_defect_is_reversed(tmp_path: Path) -> None:
    good = OLD + "\n\ndef g():\n    return 3\n"
    patch = "diff --git a/p/m.py b/p/m.py\nindex 1234567..1234567 100644\n--- a/p/m.py\n+++ b/p/m.py\n"
    patch += "@@ -1,6 +1,2 @@\n def f():\n     return 1\n-\n-\n-def g():\n-    return 3\n"
    commit(new(tmp_path / "swesmith" / "o__proj.1234abcd"), "good", {"p/m.py": good})
    bug = row(repo="swesmith/o__proj.1234abcd", base_commit=None, use_patch=True, patch=patch)
    found = built(bug, clones=Clones(tmp_path))
    changes = Changes(added_entities=("p/m.py:g",), added_modules=("p/m.py:g",))
    assert found.tasks[0].file_changes == (FileChange("p/m.py", changes),)
    assert found.tasks[0].target == "[('p/m.py', [1, 2])]"
    assert found.made == 1


def test_a_truth_that_is_needed_and_not_to_be_had_leaves_the_row_out(clones: Clones) -> None:
    rows = [row(base_commit=None), row(instance_id="j", repo="o/unknown"), row(instance_id="k", base_commit="0" * 40)]
    found = built(*rows, clones=clones, need_truth=True)
    assert [task.instance_id for task in found.tasks] == ["i"]
    assert [(left.instance_id, left.why) for left in found.left] == [("j", Why.NO_SOURCE), ("k", Why.NO_SOURCE)]


def test_a_file_that_is_no_python_is_named(tmp_path: Path) -> None:
    commit(new(tmp_path / "o" / "proj"), "old", {"p/m.py": OLD + "print 'x'\n"})
    patch = PATCH.replace("@@ -1,2 +1,2 @@", "@@ -1,3 +1,3 @@") + " print 'x'\n"
    found = built(row(base_commit=None, patch=patch), clones=Clones(tmp_path))
    assert [left.why for left in found.left] == [Why.NOT_PARSED]


def test_the_split_is_that_of_the_seed() -> None:
    rows = list(range(50))
    train, validation = split(rows, 10, 42)
    assert (len(train), len(validation)) == (40, 10)
    assert sorted(train + validation) == rows
    assert split(rows, 10, 42) == (train, validation)
    assert split(rows, 0.2, 42) == (train, validation)
    assert split(rows, 10, 43) != (train, validation)
    assert split(rows, 0, 42)[1] == []
    with pytest.raises(ConfigError, match="validation is 50, which of 50 rows leaves none to train on"):
        split(rows, 50, 42)


def test_equal_tasks_are_equal_bytes_and_are_read_the_same(tmp_path: Path) -> None:
    tasks = built(row(file_changes=changes_column(TRUTH)), row(instance_id="j", base_commit=None)).tasks
    for name in ("one", "two"):
        write_search_tasks(tmp_path / name / "rows.parquet", tasks)
    assert (tmp_path / "one/rows.parquet").read_bytes() == (tmp_path / "two/rows.parquet").read_bytes()
    assert list((tmp_path / "one").iterdir()) == [tmp_path / "one/rows.parquet"]
    records = parquet.read_table(tmp_path / "one/rows.parquet").to_pylist()
    assert records == [task.record() for task in tasks]
    assert [read_changes_column(record["file_changes"]) for record in records] == [TRUTH, None]
    assert [task.record() for task in built(*records).tasks] == records
    with pytest.raises(DataError, match="not UTF-8"):
        write_search_tasks(tmp_path / "rows.parquet", built(row(problem_statement="\udcff")).tasks)
    assert not (tmp_path / "rows.parquet").exists()


@pytest.mark.parametrize("dialect", Dialect)
def test_the_dialect_is_that_of_the_truth(tmp_path: Path, dialect: Dialect) -> None:
    source = "class C:\n    a = 1\n"
    patch = "--- a/p/m.py\n+++ b/p/m.py\n@@ -1,2 +1,2 @@\n class C:\n-    a = 1\n+    a = 2\n"
    commit(new(tmp_path / "o__proj"), "base", {"p/m.py": source})
    [task] = built(row(base_commit=None, patch=patch), clones=Clones(tmp_path), dialect=dialect).tasks
    assert task.file_changes is not None
    assert task.file_changes[0].changes.edited_modules == (("p/m.py:C",) if dialect is Dialect.CODESCOUT else ())
