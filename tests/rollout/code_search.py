"""Code search over real repositories: rows, a store and the settings of runs over them, for tests."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollout.data.repos import RepoStore
from rollout.envs import EnvironmentSetup
from rollout.envs.code_search import CodeSearchConfig, CodeSearchEnvironment
from tests.rollout.real_tasks import RealTask, origin, real_rows, real_tasks


@dataclass(frozen=True, slots=True)
class RealSearch:
    """Rows in a file, and the repositories that were prepared for them."""

    data: Path
    repos: Path
    source: str
    tasks: list[RealTask]

    @property
    def words(self) -> list[str]:
        """Words of the command line of a run."""
        return [
            "env=code_search",
            f"data={self.data}",
            f"n={len(self.tasks)}",
            f"env_config.repos={self.repos}",
            f"env_config.source={self.source}",
        ]

    def environment(self, **settings: Any) -> CodeSearchEnvironment:
        """As a run would make it."""
        config = CodeSearchConfig(repos=str(self.repos), source=self.source, **settings)
        return CodeSearchEnvironment(config, EnvironmentSetup(data=self.data, max_turns=6))


async def real_search(folder: Path, count: int) -> RealSearch:
    """`count` tasks over packages from PyPI. Skips where they can't be had."""
    origins = folder / "origins"
    origins.mkdir()
    for row in real_rows()[:count]:
        link = origins / str(row["repo"]).partition("/")[2]
        if not link.exists():
            link.symlink_to(origin(row))
    source = f"{origins}/{{name}}"
    tasks = await real_tasks(RepoStore(folder / "repos"), count, source)
    data = folder / "rows.jsonl"
    data.write_text("".join(json.dumps(task.row) + "\n" for task in tasks))
    return RealSearch(data, folder / "repos", source, tasks)
