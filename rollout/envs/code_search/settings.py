"""Settings of the environment code_search: `env_config.*` of a run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePosixPath

from fairbox.config import check, setting
from fairbox.errors import ConfigError
from rollout.envs.code_search.dialects import AnswerDialect
from rollout.tools.bash import BashConfig

__all__ = ["WORKING_DIR", "CodeSearchConfig"]

WORKING_DIR = "/testbed"
"""One path for all repositories, so that prompts of a group are the same bytes; the field's name for it."""


def _reading() -> BashConfig:
    return BashConfig(read_only=True)


@dataclass(frozen=True)
class CodeSearchConfig:
    """What the model is told, and where the repositories are."""

    repos: str = setting("", help="Folder of repositories that `fairbox data repos` has prepared for the data; needed.")
    source: str = setting(
        "https://github.com/{repo}.git", help="Where they come from, as it was said to `fairbox data repos`."
    )
    dialect: str = setting(
        "finish",
        choices=AnswerDialect,
        help="Form of the answer: files, code_block, finish (a tool call), final_answer.",
    )
    system_template: str | None = setting(None, help="Jinja2 template of the system turn; none: fairbox's own.")
    user_template: str | None = setting(None, help="Jinja2 template of the user turn; none: fairbox's own.")
    working_dir: str = setting(WORKING_DIR, help="Where the repository is mounted in the sandbox.")
    bash: BashConfig = setting(factory=_reading, help="The tool bash.")

    def validate(self) -> None:
        """ConfigError for what types can't say."""
        check(self, "env_config")
        if not self.repos:
            raise ConfigError("env_config.repos is not set, must be a folder that `fairbox data repos` has prepared")
        path = PurePosixPath(self.working_dir)
        if not path.is_absolute() or str(path) != self.working_dir or ".." in path.parts or len(path.parts) < 2:
            raise ConfigError(f"env_config.working_dir is {self.working_dir!r}, must be an absolute path like /testbed")
        self.bash.validate("env_config.bash")
