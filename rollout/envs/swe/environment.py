"""Repositories to be fixed: a report and a shell in; what the row's hidden tests say of the agent's changes out.

A task is a row of SWE-bench, SWE-Gym, SWE-smith or their like, its image one that the executor has. Invariants: a row
that can't be played is an error before anything starts; no prompt and no tool shows tests or solution; a trajectory is
scored by its tests alone, unless the run has a reward.

The prompt is one user message, of fairbox's own text or a file's. Names in braces stand for values:
{problem_statement}, {working_dir}, {repo}, {instance_id}. Nothing of tests or solution can be among them; values are
never looked at for names themselves; other braces stay what they are.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from executor_service import ExecutorClient
from fairbox.config import check, setting
from fairbox.errors import ConfigError
from rollout.envs.base import EnvironmentSetup
from rollout.envs.graded import SHELL, GradedEnvironment
from rollout.envs.registry import environment
from rollout.envs.swe.checker import RowChecker
from rollout.envs.swe.commands import plan_of
from rollout.envs.swe.programs import RepositoryTests
from rollout.envs.swe.rows import SweRow, read_swe_rows
from rollout.envs.swe.shell import RepositoryShell
from rollout.loop.task import Task
from rollout.tools.code.graded import TaskShellConfig
from rollout.tools.code.settings import LONGEST_S

DATA_SOURCE = "swe"
TEST_S = 600.0
"""Seconds for the tests of a row; the most that an executor allows by default."""
_BRACES = re.compile(r"\{(instance_id|repo)\}")
_STATEMENT = "{problem_statement}"
_NAME = re.compile(r"\{(problem_statement|working_dir|repo|instance_id)\}")
_MOST_CHARS = 100_000
_OWN = """\
The folder {working_dir} is a checkout of the repository {repo}. Change its source code so that it does what this report
asks for:

<report>
{problem_statement}
</report>

Work with the tool bash: find the code that is concerned, change it, and check what you did. You need not write tests,
and changes of existing tests do not count: tests that you don't see decide. There is no network, and nothing has to be
committed. When the code is as it should be, say so without calling a tool."""


@dataclass(frozen=True)
class SweConfig:
    """Settings of the environment swe: the images of its rows, their tests, its prompt and its tool."""

    image: str | None = setting(
        None,
        help="Name of each row's image at the executor, with {instance_id} and {repo}; none: the row's image_name, "
        "docker_image or image, else its instance_id.",
    )
    working_dir: str = setting("/testbed", help="The repository's folder in the image; its commit is the base.")
    setup: str = setting(
        "",
        help="Bash commands in that folder before the agent's first command and before the tests: "
        "source /opt/miniconda3/bin/activate testbed.",
    )
    prompt_file: str | None = setting(
        None, help="File with the user message, in which {problem_statement} stands for the row's; none: fairbox's own."
    )
    system: str | None = setting(None, help="System message before it; none: there is none.")
    test_timeout: float = setting(
        TEST_S,
        above=0,
        most=LONGEST_S,
        help="Most seconds for a row's tests; at most max_limits.wall_time_s of the executor.",
    )
    bash: TaskShellConfig = setting(factory=TaskShellConfig, help="The tool bash.")

    def validate(self) -> None:
        """Raises ConfigError for what types can't say."""
        check(self, "env_config")
        _check_places(self.image, self.working_dir)
        self.bash.validate("env_config.bash")


def _check_places(image: str | None, working_dir: str) -> None:
    if image is not None and (not image or re.search(r"[{}]", _BRACES.sub("", image))):
        raise ConfigError(
            f"env_config.image is {image!r}, must be a name, with braces in {{instance_id}} and {{repo}} alone"
        )
    path = PurePosixPath(working_dir)
    if not path.is_absolute() or str(path) != working_dir or ".." in path.parts or len(path.parts) < 2:
        raise ConfigError(f"env_config.working_dir is {working_dir!r}, must be an absolute path like /testbed")


@environment("swe", SweConfig)
class SweEnvironment(GradedEnvironment):
    """Tasks of rows, each with its image and its tests. Raises ConfigError and DataError."""

    shell_type = RepositoryShell

    def __init__(self, config: SweConfig, setup: EnvironmentSetup) -> None:
        self._config = config
        self._prompt = _OWN if config.prompt_file is None else _prompt_of(Path(config.prompt_file))
        super().__init__("swe", config.bash, setup)

    def _read(self, data: Path, limit: int | None) -> list[Task]:
        found = read_swe_rows(data, limit)
        self._rows = {row.instance_id: row for row in found}
        return [self._task(row) for row in found]

    def checker(self, task: Task, executor: ExecutorClient) -> RowChecker:
        options = task.tools_kwargs[SHELL]
        row, memory_bytes = self._rows[task.uid], self._bash.memory_limit_bytes
        return RowChecker(executor, row, options["tests"], options["image"], memory_bytes)

    def _task(self, row: SweRow) -> Task:
        system = () if self._config.system is None else ({"role": "system", "content": self._config.system},)
        return Task(
            uid=row.instance_id,
            messages=(*system, {"role": "user", "content": self._filled(row)}),
            ground_truth="",
            data_source=DATA_SOURCE,
            where=row.where,
            tools_kwargs={SHELL: row_options(row, self._config)},
            row={"instance_id": row.instance_id, "repo": row.repo, "problem_statement": row.problem_statement},
        )

    def _filled(self, row: SweRow) -> str:
        """The prompt of a row."""
        values = {
            "problem_statement": row.problem_statement.strip(),
            "working_dir": self._config.working_dir,
            "repo": row.repo,
            "instance_id": row.instance_id,
        }
        return _NAME.sub(lambda match: values[match[1]], self._prompt)


def row_options(row: SweRow, config: SweConfig) -> dict[str, Any]:
    """Options of RepositoryShell for a row. Raises DataError."""
    values = {"instance_id": row.instance_id, "repo": row.repo}
    image = row.image or row.instance_id
    if config.image is not None:
        image = _BRACES.sub(lambda match: values[match[1]], config.image)
    tests = RepositoryTests(
        plan=plan_of(row),
        test_patch=row.test_patch,
        fail_to_pass=row.fail_to_pass,
        pass_to_pass=row.pass_to_pass,
        working_dir=config.working_dir,
        setup=config.setup,
        timeout_s=config.test_timeout,
    )
    return {"image": image, "tests": tests}


def _prompt_of(path: Path) -> str:
    """A prompt of one's own, checked. Raises ConfigError."""
    given = f"env_config.prompt_file is {str(path)!r}, which"
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{given} can't be read: {error}") from None
    if len(text) > _MOST_CHARS:
        raise ConfigError(f"{given} has more than {_MOST_CHARS} characters, all that is allowed")
    if _STATEMENT not in text:
        raise ConfigError(f"{given} must have {_STATEMENT} in it")
    return text
