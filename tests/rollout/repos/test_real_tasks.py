"""Rows of SWE-smith over source archives from PyPI: the workspaces that a search agent gets."""

from __future__ import annotations

from pathlib import Path

from rollout.data.repos import RepoStore
from tests.executor.repositories import git
from tests.rollout.real_tasks import real_tasks

COMMIT = "d15cc2bf9139a13e17040c4034adc4b82aeb6249"
"""Commit of parse 1.20.2 with the bug of the first row."""


async def test_rows_become_repositories_whose_hash_is_the_same_everywhere(tmp_path: Path) -> None:
    tasks = await real_tasks(RepoStore(tmp_path), 2)
    assert tasks[0].checkout.commit == COMMIT
    for task in tasks:
        assert task.files
        added = [line[1:] for line in task.row["patch"].splitlines() if line[:1] == "+" and line[:3] != "+++"]
        for name in task.files:
            text = git(task.checkout.path, "show", f"{task.checkout.commit}:{name}")
            assert all(line.rstrip() in text for line in added)
