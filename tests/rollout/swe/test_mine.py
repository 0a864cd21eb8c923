"""Tasks out of histories: which commits become one, and that its truth is what the commit edits."""

from __future__ import annotations

from pathlib import Path

import pytest

from rollout.data.swe import mine as mining
from rollout.data.swe import parse_patch
from rollout.data.swe.mine import Unfit, clean_message, is_test, mine, named_file
from rollout.data.swe.trees import TreeError
from tests.executor.repositories import commit, git, new

SOURCE = "def f():\n    return 1\n\n\ndef g():\n    return 1\n"


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = new(tmp_path_factory.mktemp("mine") / "proj")
    commit(folder, "first commit of a whole project", {"p/m.py": SOURCE, "p/n.py": SOURCE})
    message = "The first number is wrong\n\nIt must be two.\n\nSigned-off-by: a <a@b>\n(cherry picked from commit 12)"
    fixed = {"p/m.py": SOURCE.replace("1", "2", 1), "tests/test_m.py": "assert 1\n", "CHANGES": "fixed\n"}
    commit(folder, message, fixed)
    commit(folder, "Fix the second number in p/m.py now", {"p/m.py": SOURCE.replace("1", "2")})
    commit(folder, "Write down what there is to know", {"README": "words\n"})
    commit(folder, "Test what was not tested before", {"tests/test_m.py": "assert 2\n"})
    commit(folder, "tiny change", {"p/n.py": SOURCE.replace("1", "3")})
    commit(folder, "Add a function that nobody needs", {"p/n.py": SOURCE.replace("1", "3") + "\n\ndef h(): pass\n"})
    commit(folder, "Rewrite everything from the ground up", {f"p/x{n}.py": SOURCE for n in range(6)})
    commit(
        folder,
        "Unroll the loops for more speed",
        {"p/x0.py": SOURCE.replace("return 1", "x = 1\n" + "    x += 1\n" * 500)},
    )
    commit(folder, "Speak the language of old snakes", {"p/x1.py": "print 'x'\n"})
    git(folder, "checkout", "-q", "-b", "side", "HEAD~3")
    commit(folder, "The numbers of the side branch differ", {"p/m.py": SOURCE.replace("1", "4")})
    git(folder, "checkout", "-q", "main")
    git(folder, "merge", "-q", "--no-ff", "-m", "Merge the side branch into the main one", "side")
    return folder


def test_commits_become_tasks_or_are_counted(history: Path) -> None:
    mined = mine(history, "o/proj")
    assert [task.problem_statement for task in mined.tasks] == [
        "The numbers of the side branch differ",
        "The first number is wrong\n\nIt must be two.",
    ]
    assert mined.unfit == {
        Unfit.MERGE: 1,
        Unfit.FIRST: 1,
        Unfit.NAMES_ANSWER: 1,
        Unfit.NO_PYTHON: 1,
        Unfit.TESTS_ONLY: 1,
        Unfit.SHORT_MESSAGE: 1,
        Unfit.NO_ENTITY: 1,
        Unfit.TOO_MANY_FILES: 1,
        Unfit.TOO_MANY_LINES: 1,
        Unfit.NOT_PARSED: 1,
    }
    assert mined.commits == len(mined.tasks) + mined.unfit.total()


def test_a_task_is_the_parent_and_what_changes_in_sources(history: Path) -> None:
    task = mine(history, "o/proj").tasks[-1]
    parent = git(history, "rev-list", "--max-parents=0", "HEAD")
    assert (task.repo, task.base_commit, task.use_patch) == ("o/proj", parent, False)
    assert task.instance_id.startswith("o__proj-")
    assert [file.path for file in parse_patch(task.patch).files] == ["p/m.py"]
    assert task.target == "[('p/m.py', [1, 5])]"
    assert task.file_changes is not None
    assert task.file_changes[0].changes.edited_entities == ("p/m.py:f",)


@pytest.fixture
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("MAX_FILES", 6), ("MAX_LINES", 2000), ("MIN_WORDS", 2)):
        monkeypatch.setattr(mining, name, value)


@pytest.mark.usefixtures("wide")
def test_filters_are_of_sizes_and_words(history: Path) -> None:
    mined = mine(history, "o/proj")
    left = {Unfit.MERGE, Unfit.FIRST, Unfit.NO_PYTHON, Unfit.TESTS_ONLY, Unfit.NOT_PARSED}
    assert set(mined.unfit) == left | {Unfit.NAMES_ANSWER, Unfit.NO_ENTITY}
    assert len(mined.tasks) == 4


@pytest.mark.usefixtures("wide")
def test_a_limit_takes_commits_by_the_seed(history: Path) -> None:
    everything = [task.instance_id for task in mine(history, "o/proj").tasks]
    picks = {seed: mine(history, "o/proj", limit=3, seed=seed).tasks for seed in range(6)}
    for seed, tasks in picks.items():
        assert tasks == mine(history, "o/proj", limit=3, seed=seed).tasks
        assert [name for name in everything if name in {task.instance_id for task in tasks}] == [
            task.instance_id for task in tasks
        ]
        assert len(tasks) == 3
    assert len({tuple(task.instance_id for task in tasks) for tasks in picks.values()}) > 1


def test_what_is_no_repository_or_has_no_commit_is_named(tmp_path: Path) -> None:
    with pytest.raises(TreeError, match="not a git repository"):
        mine(tmp_path, "o/proj")
    with pytest.raises(TreeError, match=r"empty: git log: .*HEAD"):
        mine(new(tmp_path / "empty"), "o/proj")


@pytest.mark.parametrize(
    ("statement", "named"),
    [
        ("see src/pkg/parser.py for it", True),
        ("in parser.py, line 3", True),
        ("import pkg.parser fails", True),
        ("`src.pkg.parser`", True),
        ("pkg.parser.Parser fails", False),
        ("the parser fails", False),
        ("myparser.py fails", False),
        ("parser.pyc is left", False),
        ("other/pkg/parsers.py", False),
    ],
)
def test_statements_that_name_the_answer(statement: str, named: bool) -> None:
    assert (named_file(statement, ["src/pkg/parser.py"]) is not None) == named


def test_a_package_is_named_by_its_path_alone() -> None:
    assert named_file("an __init__.py is missing", ["pkg/__init__.py"]) is None
    assert named_file("pkg/__init__.py is empty", ["pkg/__init__.py"]) == "pkg/__init__.py"


def test_messages_lose_their_trailers() -> None:
    assert clean_message("\nFix it\n\nWhy: x\nCo-Authored-By: b <b@c>\nChange-Id: I1\n\n") == "Fix it\n\nWhy: x"


def test_files_of_tests() -> None:
    tests = ["tests/a.py", "pkg/test/b.py", "test_x.py", "x_test.py", "a/conftest.py", "Tests/c.py"]
    assert [is_test(path) for path in tests] == [True] * 6
    assert not any(is_test(path) for path in ("pkg/testing_tools.py", "latest.py", "contest.py", "pkg/attest/x.py"))
