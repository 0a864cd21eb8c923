"""Rows become tasks or are left out with a reason, and the truth is made of the source that the patch fits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet

from fairbox.errors import ConfigError
from rollout.data.records import DataError
from rollout.data.swe import Changes, Dialect, FileChange
from rollout.data.swe.build import Built, Filters, Why, build
from rollout.data.swe.rows import changes_column, read_changes_column
from rollout.data.swe.situation import Evidence
from rollout.data.swe.trees import Archives, Clones, Source
from rollout.data.swe.write import split, write_search_tasks
from tests.rollout.swe.repositories import commit, git, make_repository, make_sdist

OLD, NEW = "def f():\n    return 1\n", "def f():\n    return 2\n"
PATCH = "diff --git a/p/m.py b/p/m.py\n--- a/p/m.py\n+++ b/p/m.py\n"
PATCH += "@@ -1,2 +1,2 @@\n def f():\n-    return 1\n+    return 2\n"
TRUTH = (FileChange("p/m.py", Changes(edited_entities=("p/m.py:f",), edited_modules=("p/m.py:f",))),)


def row(**columns: Any) -> dict[str, Any]:
    each = {"instance_id": "i", "repo": "o/proj", "base_commit": "c", "problem_statement": "it fails", "patch": PATCH}
    return {key: value for key, value in (each | columns).items() if value != "absent"}


def built(*rows: Any, sources: list[Source] | None = None, **options: Any) -> Built:
    return build([(f"rows:{number}", each) for number, each in enumerate(rows, 1)], sources or [], **options)


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
        ({"patch": PATCH + "+more\n"}, Why.BAD_PATCH, "patch: line 8: a file or a hunk was expected"),
        ({"patch": PATCH.replace(".py", ".txt")}, Why.NO_PYTHON, "patch: changes p/m.txt, and no .py file"),
    ],
)
def test_a_bad_row_is_left_out_with_its_reason(columns: dict[str, Any], why: Why, problem: str) -> None:
    found = built(row(instance_id="good"), row(**columns))
    assert [task.instance_id for task in found.tasks] == ["good"]
    [left] = found.left
    assert (left.where, left.why) == ("rows:2", why)
    assert problem in left.problem


def test_rows_that_are_no_objects_come_twice_or_change_too_many_files_are_left_out() -> None:
    many = PATCH + PATCH.replace("p/m.py", "p/n.py")
    found = built([], row(), row(), row(instance_id="j", patch=many), filters=Filters(max_files=1))
    assert [(left.where, left.why) for left in found.left] == [
        ("rows:1", Why.BAD_ROW),
        ("rows:3", Why.TWICE),
        ("rows:4", Why.TOO_MANY_FILES),
    ]


def test_truth_is_made_of_the_commit_in_a_clone(tmp_path: Path) -> None:
    repository = make_repository(tmp_path / "o__proj")
    base = commit(repository, "base", {"p/m.py": OLD})
    commit(repository, "later", {"p/m.py": NEW})
    other = row(instance_id="j", base_commit="HEAD")
    found = built(row(base_commit=base), other, row(instance_id="k"), sources=[Clones(tmp_path)])
    assert [(task.instance_id, task.file_changes) for task in found.tasks] == [("i", TRUTH), ("k", None)]
    assert [(left.instance_id, left.why) for left in found.left] == [("j", Why.DOES_NOT_FIT)]
    assert "p/m.py: hunk 1 expects '    return 1\\n' in line 2" in found.left[0].problem
    git(repository, "clone", "-q", "--bare", str(repository), str(tmp_path / "other" / "proj.git"))
    bare = built(row(repo="other/proj", base_commit=base), sources=[Clones(tmp_path)])
    assert bare.tasks[0].file_changes == TRUTH


def test_truth_is_made_of_the_release_that_the_patch_fits(tmp_path: Path) -> None:
    make_sdist(tmp_path / "proj-1.0.tar.gz", {"p/m.py": "# no\n" + OLD})
    make_sdist(tmp_path / "proj-1.1.tar.gz", {"p/m.py": OLD})
    make_sdist(tmp_path / "proj-1.2.tar.gz", {"p/m.py": NEW})
    (tmp_path / "notes.txt").write_text("no release")
    found = built(row(), sources=[Archives(tmp_path)])
    assert found.tasks[0].file_changes == TRUTH
    assert (found.made["i"].source, found.made["i"].evidence) == ("proj-1.1.tar.gz", Evidence.FITS)
    (tmp_path / "proj-1.1.tar.gz").unlink()
    later = built(row(), sources=[Archives(tmp_path)])
    assert later.tasks[0].file_changes == TRUTH
    assert (later.made["i"].source, later.made["i"].evidence) == ("proj-1.2.tar.gz", Evidence.UNDONE)
    (tmp_path / "proj-1.2.tar.gz").unlink()
    none = built(row(), row(instance_id="j", repo="o/unknown"), sources=[Archives(tmp_path)])
    assert [task.file_changes for task in none.tasks] == [None, None]
    assert list(none.unfit) == ["i"]
    assert none.unfit["i"].startswith("proj-1.0.tar.gz: p/m.py: hunk 1 expects 'def f():\\n' in line 1")
    needed = built(row(), sources=[Archives(tmp_path)], filters=Filters(need_truth=True))
    assert [left.why for left in needed.left] == [Why.NO_SOURCE]


def test_a_patch_that_makes_the_defect_is_reversed(tmp_path: Path) -> None:
    good = OLD + "\n\ndef g():\n    return 3\n"
    patch = "diff --git a/p/m.py b/p/m.py\nindex {}..1234567 100644\n--- a/p/m.py\n+++ b/p/m.py\n"
    patch += "@@ -1,6 +1,2 @@\n def f():\n     return 1\n-\n-\n-def g():\n-    return 3\n"
    repository = make_repository(tmp_path / "git")
    commit(repository, "good", {"p/m.py": good})
    blob = git(repository, "rev-parse", "HEAD:p/m.py")
    make_sdist(tmp_path / "sdists" / "proj-1.0.tar.gz", {"p/m.py": good})
    bug = row(repo="swesmith/o__proj.1234abcd", base_commit=None, use_patch=True, patch=patch.format(blob[:7]))
    found = built(bug, sources=[Archives(tmp_path / "sdists")])
    changes = Changes(added_entities=("p/m.py:g",), added_modules=("p/m.py:g",))
    assert found.tasks[0].file_changes == (FileChange("p/m.py", changes),)
    assert found.tasks[0].target == "[('p/m.py', [1, 2])]"
    assert found.made["i"].evidence is Evidence.HASHES
    searched = found.made["i"].read("p/m.py")
    assert searched == OLD


def test_a_truth_that_differs_from_the_given_one_is_named(tmp_path: Path) -> None:
    make_sdist(tmp_path / "proj-1.1.tar.gz", {"p/m.py": OLD})
    given = [{"file": "p/m.py", "changes": {"edited_entities": ["p/m.py:other"]}}]
    found = built(row(file_changes=given), sources=[Archives(tmp_path)])
    assert found.differs == ["i"]
    assert found.tasks[0].file_changes == TRUTH
    assert not built(row(file_changes=changes_column(TRUTH)), sources=[Archives(tmp_path)]).differs


def test_releases_whose_truths_differ_decide_nothing(tmp_path: Path) -> None:
    make_sdist(tmp_path / "proj-1.0.tar.gz", {"p/m.py": OLD})
    make_sdist(tmp_path / "proj-1.1.tar.gz", {"p/m.py": OLD + "\n\nclass C:\n    def f(self): pass\n"})
    assert built(row(), sources=[Archives(tmp_path)]).tasks  # a method that comes later hides nothing
    hidden = "class C:\n    def f(self): pass\n" + OLD
    patch = PATCH.replace("@@ -1,2 +1,2 @@", "@@ -3,2 +3,2 @@")
    make_sdist(tmp_path / "proj-1.0.tar.gz", {"p/m.py": hidden})
    make_sdist(tmp_path / "proj-1.1.tar.gz", {"p/m.py": "\n\n" + OLD})
    found = built(row(patch=patch), sources=[Archives(tmp_path)])
    assert [left.why for left in found.left] == [Why.DOES_NOT_FIT]
    assert "fits proj-1.0.tar.gz, proj-1.1.tar.gz, which give different truths" in found.left[0].problem


def test_a_damaged_archive_and_a_file_that_is_no_python_are_named(tmp_path: Path) -> None:
    (tmp_path / "proj-1.0.tar.gz").write_bytes(b"nothing")
    make_sdist(tmp_path / "other-1.0.tar.gz", {"p/m.py": OLD.replace("def f", "def  f") + "print 'x'\n"})
    patch = PATCH.replace(" def f", " def  f").replace("@@ -1,2 +1,2 @@", "@@ -1,2 +1,2 @@")
    found = built(row(), row(instance_id="j", repo="o/other", patch=patch), sources=[Archives(tmp_path)])
    assert [left.why for left in found.left] == [Why.NOT_READ, Why.NOT_PARSED]


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
    make_sdist(tmp_path / "proj-1.0.tar.gz", {"p/m.py": source})
    [task] = built(row(patch=patch), sources=[Archives(tmp_path)], dialect=dialect).tasks
    assert task.file_changes is not None
    assert task.file_changes[0].changes.edited_modules == (("p/m.py:C",) if dialect is Dialect.CODESCOUT else ())
