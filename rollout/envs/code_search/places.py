"""Where the repository of a row is: in a store that was filled before the run.

Nothing is fetched here: a rollout that waits for a network would charge the trajectory, or the GPUs, for it.
"""

from __future__ import annotations

from pathlib import Path

from fairbox.errors import ConfigError, FieldErrors
from rollout.data.records import DataError
from rollout.data.repos import RepoError, RepoStore, check_template, row_want
from rollout.envs.code_search.rows import SearchRow

__all__ = ["Repositories"]


class Repositories:
    """The repositories in `folder`, which `fairbox data repos` filled with the same `source`. Raises ConfigError."""

    def __init__(self, folder: Path, source: str) -> None:
        if not folder.is_dir():
            raise ConfigError(f"env_config.repos is {str(folder)!r}, which is no folder; `fairbox data repos` makes it")
        try:
            check_template(source)
        except FieldErrors as error:
            raise ConfigError(f"env_config.{error}") from None
        self._store = RepoStore(folder)
        self._source = source

    @property
    def folder(self) -> Path:
        """Absolute; the executor needs it, or a folder above, among its `workspace_roots`."""
        return self._store.folder

    def workspace(self, row: SearchRow) -> dict[str, str]:
        """What PrepareWorkspace takes of it. Raises DataError for a row that names none, or one that is not there."""
        try:
            want = row_want(row.columns, self._source)
            checkout = self._store.find(want)
        except (FieldErrors, RepoError) as error:
            raise DataError(f"{row.where}: {error}") from None
        if checkout is None:
            at = want.commit or "its default branch"
            patched = " with the row's patch" if want.patch else ""
            raise DataError(
                f"{row.where}: {want.repo} at {at}{patched} from {want.source} is not in {self._store.folder}; "
                f"run `fairbox data repos` with these rows first"
            )
        return checkout.workspace()
