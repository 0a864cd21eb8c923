"""Agentic code search: a report about a repository in; the places in the code that must change out.

A task is a row of the data. Its repository is a workspace of the sandbox, prepared once and shared by all trajectories
of all groups, at the same path for all; the model searches it by `bash`. Invariants: the prompts of a group are the
same bytes; no prompt and no tool sees a column with the answer; a repository that was not prepared is an error before
anything starts, and never a trajectory without one.

A row needs `instance_id`, `problem_statement`, `repo` and `base_commit` (or null); what else it has is kept for reward
functions, each of which says what it needs (docs/how-to/datasets.md has the columns).

Nothing is fetched here: a rollout that waits for a network would charge the trajectory, or the GPUs, for it.
"""

from __future__ import annotations

import importlib.resources
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, cast, get_args

from fairbox.config import check, setting
from fairbox.errors import ConfigError, FieldErrors
from rollout.data.records import LONGEST_STATEMENT, DataError, read_instances, text_column
from rollout.data.repos import RepoStore, check_template, row_want
from rollout.envs.base import Environment, EnvironmentSetup
from rollout.envs.code_search.finish import LocalizationFinish
from rollout.envs.code_search.prompts import PromptContext, Prompts
from rollout.envs.registry import environment
from rollout.loop.task import Task
from rollout.rewards import Composition, read_rewards
from rollout.rewards.localization.dialects import Dialect
from rollout.tools.base import NoSettings
from rollout.tools.code.bash import BashConfig, BashTool
from rollout.tools.registry import ToolSpec

WORKING_DIR = "/testbed"
"""One path for all repositories, so that prompts of a group are the same bytes; the field's name for it."""


def _reading() -> BashConfig:
    return BashConfig(read_only=True)


@dataclass(frozen=True)
class CodeSearchConfig:
    """Settings of the environment code_search: its prompts, its tool, and the folder of its repositories."""

    repos: str = setting("", help="Folder of repositories that `fairbox data repos` has prepared for the data; needed.")
    source: str = setting(
        "https://github.com/{repo}.git", help="Where they come from, as it was said to `fairbox data repos`."
    )
    dialect: str = setting(
        "finish",
        choices=get_args(Dialect),
        help="Form of the answer: files, code_block, finish (a tool call), final_answer.",
    )
    system_template: str | None = setting(None, help="Jinja2 template of the system turn; none: fairbox's own.")
    user_template: str | None = setting(None, help="Jinja2 template of the user turn; none: fairbox's own.")
    working_dir: str = setting(WORKING_DIR, help="Where the repository is mounted in the sandbox.")
    bash: BashConfig = setting(factory=_reading, help="The tool bash.")

    def validate(self) -> None:
        """Raises ConfigError for what types can't say."""
        check(self, "env_config")
        if not self.repos:
            raise ConfigError("env_config.repos is not set, must be a folder that `fairbox data repos` has prepared")
        path = PurePosixPath(self.working_dir)
        if not path.is_absolute() or str(path) != self.working_dir or ".." in path.parts or len(path.parts) < 2:
            raise ConfigError(f"env_config.working_dir is {self.working_dir!r}, must be an absolute path like /testbed")
        self.bash.validate("env_config.bash")


DATA_SOURCE = "code_search"
"""Data source of rows that name none."""


@dataclass(frozen=True, slots=True)
class SearchRow:
    """One report about one repository."""

    instance_id: str
    columns: Mapping[str, Any]
    """All of the row, the answer included."""
    where: str
    """File and line, for error messages."""

    @property
    def truth(self) -> str:
        """The files that change, as a JSON list, for people who read a dump; empty where the row names none."""
        changes = self.columns.get("file_changes")
        if not isinstance(changes, list):
            return ""
        files = [change.get("file") for change in changes if isinstance(change, Mapping)]
        return json.dumps([file for file in files if isinstance(file, str)])


def read_search_rows(path: Path, limit: int | None = None) -> list[SearchRow]:
    """The first `limit` rows of a `.jsonl` or `.parquet` file; fewer where it has fewer. Raises DataError."""
    return read_instances(path, _row, limit)


def _row(value: Any, where: str) -> SearchRow:
    if not isinstance(value, dict):
        raise DataError(f"{where}: must be an object with instance_id, problem_statement, repo and base_commit")
    text_column(value, "problem_statement", where, LONGEST_STATEMENT)
    return SearchRow(text_column(value, "instance_id", where, LONGEST_STATEMENT), value, where)


@environment("code_search", CodeSearchConfig)
class CodeSearchEnvironment(Environment):
    """Tasks of the rows of the run's data, with the repositories that were prepared for them. Raises ConfigError and
    DataError."""

    def __init__(self, config: CodeSearchConfig, setup: EnvironmentSetup) -> None:
        if setup.data is None:
            raise ConfigError(
                "data is none, but code search has no built-in tasks: name a file of rows (docs/how-to/datasets.md)"
            )
        self._config = config
        self._dialect = cast("Dialect", config.dialect)
        self._store = _prepared(config)
        self.reward = setup.reward or default_reward(self._dialect)
        tools = self._tool_names(self.tools() if setup.tools is None else setup.tools)
        context = PromptContext(config.working_dir, setup.max_turns, setup.max_parallel_calls, tools)
        prompts = Prompts(self._dialect, system=_path(config.system_template), user=_path(config.user_template))
        self._tasks = [self._task(row, prompts, context) for row in read_search_rows(setup.data, setup.limit)]

    def tasks(self) -> list[Task]:
        """One task per row; its uid is the row's `instance_id`."""
        return list(self._tasks)

    def tools(self) -> tuple[ToolSpec, ...]:
        """bash, and the tool that the dialect needs, if any."""
        bash = ToolSpec("env_config.bash", BashTool, self._config.bash)
        if self._dialect != "finish":
            return (bash,)
        return (bash, ToolSpec("env_config.dialect", LocalizationFinish, NoSettings()))

    def workspace_roots(self) -> tuple[Path, ...]:
        """The folder of the repositories."""
        return (self._store.folder,)

    def _tool_names(self, specs: tuple[ToolSpec, ...]) -> list[str]:
        """Names of the tools. Raises ConfigError if the answer has no tool."""
        names = [schema.name for spec in specs if (schema := spec.schema or _own_schema(spec)) is not None]
        needed = LocalizationFinish.default_schema.name
        if self._dialect == "finish" and needed not in names:
            raise ConfigError(
                f"env_config.dialect is {self._dialect}, but the run's tools have no {needed}; add "
                "rollout.envs.code_search.LocalizationFinish to them, or choose another dialect"
            )
        return names

    def _task(self, row: SearchRow, prompts: Prompts, context: PromptContext) -> Task:
        workspace = {**self._workspace(row), "mount_path": self._config.working_dir}
        try:
            messages = prompts.render(row.columns, context)
        except ConfigError as error:
            raise DataError(f"{row.where}: {error}") from None
        return Task(
            uid=row.instance_id,
            messages=messages,
            ground_truth=row.truth,
            data_source=str(row.columns.get("data_source") or DATA_SOURCE),
            where=row.where,
            tools_kwargs={BashTool.default_schema.name: {"workspace": workspace}},
            row=row.columns,
        )

    def _workspace(self, row: SearchRow) -> dict[str, str]:
        """Options of PrepareWorkspace for the row's repository. Raises DataError if it names none, or one not there."""
        try:
            want = row_want(row.columns, self._config.source)
        except FieldErrors as error:
            raise DataError(f"{row.where}: {error}") from None
        checkout = self._store.find(want)
        if checkout is None:
            at = want.commit or "its default branch"
            patched = " with the row's patch" if want.patch else ""
            raise DataError(
                f"{row.where}: {want.repo} at {at}{patched} from {want.source} is not in {self._store.folder}; "
                f"run `fairbox data repos` with these rows first"
            )
        return checkout.workspace()


def _prepared(config: CodeSearchConfig) -> RepoStore:
    """The folder that `fairbox data repos` filled. Raises ConfigError."""
    if not Path(config.repos).is_dir():
        raise ConfigError(f"env_config.repos is {config.repos!r}, which is no folder; `fairbox data repos` makes it")
    try:
        check_template(config.source)
    except FieldErrors as error:
        raise ConfigError(f"env_config.{error}") from None
    return RepoStore(config.repos)


def default_reward(dialect: Dialect) -> Composition:
    """The recipe that is shipped for a dialect: `recipes/{dialect}.yaml`."""
    recipe = importlib.resources.files("rollout.envs.code_search").joinpath("recipes", f"{dialect}.yaml")
    with importlib.resources.as_file(recipe) as path:
        return read_rewards(path)


def _own_schema(spec: ToolSpec) -> Any:
    return getattr(spec.kind, "default_schema", None)


def _path(given: str | None) -> Path | None:
    return None if given is None else Path(given)
