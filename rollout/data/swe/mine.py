"""Tasks out of a repository's own history: what a commit says is asked, what it changes is to be found.

The patch of a task is what the commit does to Python files that are no tests; other files (tests, documents, changes)
are left out, because nobody searches for them to fix what was reported. The searched tree is that of the parent. The
same repository and seed give the same tasks.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path, PurePosixPath

from rollout.data.swe.patch import PatchError, parse_patch, target_column
from rollout.data.swe.rows import SearchTask
from rollout.data.swe.trees import GitTree, diff_text, run_git
from rollout.data.swe.truth import Dialect, TruthError, truth

MAX_FILES = 5
"""Most `.py` files, tests not counted, that a commit may change."""
MAX_LINES = 400
"""Most lines of them that a commit may add and remove."""
MIN_WORDS = 5
"""Fewest words of a message."""
_TRAILER = re.compile(
    r"(signed-off-by|co-authored-by|reviewed-by|acked-by|tested-by|reported-by|change-id|cc|git-svn-id|pull-request"
    r"|reviewed-on|differential revision|gerrit-\w+|bug-url):.*|\(cherry picked from commit [0-9a-f]+\)",
    re.IGNORECASE,
)
_TEST_FOLDERS = frozenset({"test", "tests", "testing", "testsuite"})


def clean_message(message: str) -> str:
    """A commit message without trailers (who signed, reviewed, where it was merged) and blank lines at its ends."""
    lines = [line.rstrip() for line in message.splitlines()]
    return "\n".join(line for line in lines if not _TRAILER.fullmatch(line.strip())).strip()


def is_test(path: str) -> bool:
    """Says whether a Python file is one of tests, by its name or its folders."""
    *folders, name = PurePosixPath(path).parts
    stem = name.removesuffix(".py")
    named = stem.startswith("test_") or stem.endswith("_test") or stem in ("conftest", "test", "tests")
    return named or not _TEST_FOLDERS.isdisjoint(folder.lower() for folder in folders)


def named_file(statement: str, paths: Iterable[str]) -> str | None:
    """The first of the files that a statement names, by its path, its name (`parser.py`) or its module (`pkg.parser`).

    A bare stem (`parser`) is no name of a file: half of all reports have such a word.
    """
    for path in paths:
        parts = PurePosixPath(path.removesuffix(".py")).parts
        if parts[-1] == "__init__":
            names = [path, *_dotted(parts[:-1])]  # every package has a file of that name
        else:
            names = [path, PurePosixPath(path).name, *_dotted(parts)]
        if any(re.search(rf"(?<![\w.]){re.escape(name)}(?![\w/]|\.\w)", statement) for name in names):
            return path
    return None


def _dotted(parts: tuple[str, ...]) -> list[str]:
    """Names of the module from any folder on, of two parts at least: `src/pkg/mod` is src.pkg.mod and pkg.mod."""
    return [".".join(parts[first:]) for first in range(len(parts) - 1)]


class Unfit(StrEnum):
    """Reason that a commit is no task."""

    MERGE = "merge"
    """It has several parents."""
    FIRST = "first commit"
    """It has no parent."""
    SHORT_MESSAGE = "short message"
    """It has fewer than MIN_WORDS words."""
    NO_PYTHON = "no python file"
    """It changes documents, settings, anything but `.py` files."""
    TESTS_ONLY = "tests only"
    """Its `.py` files are tests."""
    TOO_MANY_FILES = "too many files"
    """It changes more than MAX_FILES `.py` files; a renamed one counts twice."""
    TOO_MANY_LINES = "too many lines"
    """It adds and removes more than MAX_LINES lines of them."""
    NAMES_ANSWER = "names the answer"
    """Its message names a file that is to be found."""
    NOT_PARSED = "not parsed"
    """A file is no Python that this interpreter can parse, before or after."""
    NO_ENTITY = "no entity"
    """No function or method that was there is edited."""


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit, without its changes."""

    hash: str
    parents: tuple[str, ...]
    message: str


@dataclass(slots=True)
class Mined:
    """Tasks made from the commits that were looked at, and counts of unfit commits."""

    tasks: list[SearchTask] = field(default_factory=list)
    """Tasks in the order of the history, newest first."""
    unfit: Counter[Unfit] = field(default_factory=Counter)
    commits: int = 0
    """Number of all commits; with a limit not all are looked at."""


def mine(
    repository: Path,
    repo: str,
    *,
    limit: int | None = None,
    seed: int = 42,
    dialect: Dialect = Dialect.CODESCOUT,
    progress: Callable[[int], None] = lambda looked_at: None,
) -> Mined:
    """At most `limit` tasks, of commits chosen by the seed, from what HEAD can reach. Raises TreeError.

    `repo` names the repository in the rows (owner/name).
    """
    commits = read_commits(repository)
    order = list(range(len(commits)))
    if limit is not None:
        random.Random(seed).shuffle(order)  # noqa: S311 - no secret
    mined = Mined(commits=len(commits))
    found: dict[int, SearchTask] = {}
    for looked_at, position in enumerate(order):
        if limit is not None and len(found) >= limit:
            break
        made = _task(repository, repo, commits[position], dialect)
        if isinstance(made, Unfit):
            mined.unfit[made] += 1
        else:
            found[position] = made
        progress(looked_at + 1)
    mined.tasks = [found[position] for position in sorted(found)]
    return mined


def read_commits(repository: Path) -> list[Commit]:
    """Commits that HEAD can reach, in git's topological order. Raises TreeError."""
    words = ("log", "-z", "--topo-order", "--format=%H%n%P%n%B", "--no-show-signature", "HEAD", "--")
    text = run_git(repository, *words).decode("utf-8", "replace")
    commits = []
    for entry in filter(None, text.split("\0")):
        name, parents, message = entry.split("\n", 2)
        commits.append(Commit(name, tuple(parents.split()), message))
    return commits


def _task(repository: Path, repo: str, commit: Commit, dialect: Dialect) -> SearchTask | Unfit:
    if len(commit.parents) != 1:
        return Unfit.MERGE if commit.parents else Unfit.FIRST
    statement = clean_message(commit.message)
    if len(statement.split()) < MIN_WORDS:
        return Unfit.SHORT_MESSAGE
    parent = commit.parents[0]
    paths = _answer_paths(repository, parent, commit.hash)
    if isinstance(paths, Unfit):
        return paths
    if named_file(statement, paths) is not None:
        return Unfit.NAMES_ANSWER
    text = diff_text(repository, parent, commit.hash, *paths)
    try:
        text.encode()  # rows are UTF-8
        patch = parse_patch(text)
        hunks = [hunk for file in patch.files for hunk in file.hunks]
        if sum(len(hunk.removed) + len(hunk.added) for hunk in hunks) > MAX_LINES:
            return Unfit.TOO_MANY_LINES
        before, after = (GitTree(repository, each).read for each in (parent, commit.hash))
        changes = tuple(truth(patch, before, after, dialect))
    except (PatchError, TruthError, UnicodeEncodeError):  # a file that is not Python 3, or whose name has quotes
        return Unfit.NOT_PARSED
    if not any(each.changes.edited_entities for each in changes):
        return Unfit.NO_ENTITY
    instance_id = f"{repo.replace('/', '__')}-{commit.hash[:12]}"
    return SearchTask(instance_id, repo, parent, statement, text, False, target_column(patch), changes)


def _answer_paths(repository: Path, parent: str, commit: str) -> list[str] | Unfit:
    words = ("diff-tree", "-r", "-z", "--name-only", "--no-renames", "--end-of-options", parent, commit)
    names = run_git(repository, *words).decode("utf-8", "surrogateescape")
    python = [name for name in names.split("\0") if name.endswith(".py")]
    answer = [name for name in python if not is_test(name)]
    if not answer:
        return Unfit.TESTS_ONLY if python else Unfit.NO_PYTHON
    return answer if len(answer) <= MAX_FILES else Unfit.TOO_MANY_FILES
