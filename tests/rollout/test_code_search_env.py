"""The environment code_search without services: its tasks, and what is refused before a run starts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fairbox.errors import ConfigError
from rollout.data.records import DataError
from rollout.data.repos import RepoStore, Want
from rollout.envs.base import EnvironmentSetup
from rollout.envs.code_search import CodeSearchConfig, CodeSearchEnvironment, LocalizationFinish
from rollout.envs.registry import find_environment
from rollout.rewards import parse_rewards
from rollout.tools.base import NoSettings
from rollout.tools.code.bash import BashConfig, BashTool
from rollout.tools.registry import ToolSpec
from tests.executor.repositories import commit, new
from tests.pages import examples


class Prepared:
    """A repository of two commits, of which the store has the first."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.repos = folder, folder / "repos"
        self.origin = new(folder / "origin")
        self.commits = [commit(self.origin, text, {"a.py": text.encode()}) for text in ("a = 1\n", "a = 2\n")]

    def setup(self, *commits: str, **columns: Any) -> EnvironmentSetup:
        rows = [
            {"instance_id": f"o__n-{n}", "problem_statement": f"It is {n}.", "repo": "o/n", "base_commit": commit}
            for n, commit in enumerate(commits)
        ]
        data = self.folder / "rows.jsonl"
        data.write_text("".join(json.dumps(row | columns) + "\n" for row in rows))
        return EnvironmentSetup(data=data, max_turns=6)

    def config(self, **settings: Any) -> CodeSearchConfig:
        config = CodeSearchConfig(repos=str(self.repos), source=str(self.origin), **settings)
        config.validate()
        return config


@pytest.fixture
async def prepared(tmp_path: Path) -> Prepared:
    made = Prepared(tmp_path)
    await RepoStore(made.repos).make(Want("o/n", str(made.origin), made.commits[0]))
    return made


def opened(config: CodeSearchConfig, setup: EnvironmentSetup) -> CodeSearchEnvironment:
    environment = find_environment("code_search").make(config, setup)
    assert isinstance(environment, CodeSearchEnvironment)
    return environment


async def test_row_becomes_a_task_with_its_repository_and_without_its_answer(prepared: Prepared) -> None:
    changes = [{"file": "a.py", "changes": {"edited_modules": ["a.py:f"]}}]
    setup = prepared.setup(prepared.commits[0], file_changes=changes, patch="the secret answer")
    environment = opened(prepared.config(), setup)
    (task,) = environment.tasks()
    workspace = task.tools_kwargs["bash"]["workspace"]
    assert (workspace["commit"], workspace["mount_path"]) == (prepared.commits[0], "/testbed")
    assert Path(workspace["local_path"]).is_relative_to(environment.workspace_roots()[0])
    assert (task.uid, task.ground_truth, task.row["patch"]) == ("o__n-0", '["a.py"]', "the secret answer")
    said = str(task.messages)
    assert "It is 0." in said
    assert "up to 5 calls" in said
    assert "You have 6 turns" in said
    assert "secret" not in said
    assert str(prepared.folder) not in said
    assert [spec.kind for spec in environment.tools()] == [BashTool, LocalizationFinish]
    assert environment.tools()[0].config.read_only


async def test_repository_that_was_not_prepared_is_named(prepared: Prepared) -> None:
    with pytest.raises(DataError) as caught:
        opened(prepared.config(), prepared.setup(*prepared.commits))
    assert f"rows.jsonl:2: o/n at {prepared.commits[1]} from {prepared.origin} is not in" in str(caught.value)
    assert "run `fairbox data repos`" in str(caught.value)


async def test_row_without_a_repository_is_named(prepared: Prepared) -> None:
    with pytest.raises(DataError, match=r"rows\.jsonl:1: repo is None"):
        opened(prepared.config(), prepared.setup(prepared.commits[0], repo=None))


async def test_column_that_a_template_needs_and_a_row_lacks_is_named(prepared: Prepared) -> None:
    template = prepared.folder / "user.j2"
    template.write_text("\n{{ instance.hints }}")
    with pytest.raises(DataError, match=r"rows\.jsonl:1: .*user\.j2:2: .*hints"):
        opened(prepared.config(user_template=str(template)), prepared.setup(prepared.commits[0]))


async def test_dialect_that_is_a_call_needs_its_tool(prepared: Prepared) -> None:
    setup = prepared.setup(prepared.commits[0])
    bash = ToolSpec("tools[0]", BashTool, BashConfig())
    finish = ToolSpec("tools[1]", LocalizationFinish, NoSettings())
    given = {name: getattr(setup, name) for name in ("data", "max_turns")}
    with pytest.raises(ConfigError, match="the run's tools have no localization_finish"):
        opened(prepared.config(), EnvironmentSetup(**given, tools=(bash,)))
    opened(prepared.config(dialect="files"), EnvironmentSetup(**given, tools=(bash,)))
    (task,) = opened(prepared.config(), EnvironmentSetup(**given, tools=(bash, finish))).tasks()
    assert "Tools: bash, localization_finish." in task.messages[0]["content"]


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"repos": ""}, "env_config.repos is not set"),
        ({"dialect": "file_list"}, "env_config.dialect is 'file_list', must be one of: files, code_block, "),
        ({"working_dir": "testbed"}, "env_config.working_dir is 'testbed'"),
        ({"working_dir": "/a/../b"}, "env_config.working_dir"),
        ({"bash": BashConfig(num_workers=0)}, "env_config.bash.num_workers is 0"),
    ],
)
def test_bad_settings_are_named(settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        CodeSearchConfig(**{"repos": "repos", **settings}).validate()
    assert problem in str(caught.value)


def test_what_can_not_be_without_data_and_repositories_says_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="data is none, but code search has no built-in tasks"):
        opened(CodeSearchConfig(repos=str(tmp_path)), EnvironmentSetup())
    data = tmp_path / "rows.jsonl"
    data.write_text('{"instance_id": "a", "problem_statement": "b"}\n')
    with pytest.raises(ConfigError, match="which is no folder; `fairbox data repos` makes it"):
        opened(CodeSearchConfig(repos=str(tmp_path / "gone")), EnvironmentSetup(data=data))
    with pytest.raises(ConfigError, match="source"):
        opened(CodeSearchConfig(repos=str(tmp_path), source="{nme}"), EnvironmentSetup(data=data))


async def test_reward_of_the_run_is_taken(prepared: Prepared) -> None:
    own = parse_rewards([{"fn": "multiturn_reward"}])
    setup = prepared.setup(prepared.commits[0])
    environment = opened(prepared.config(), EnvironmentSetup(data=setup.data, reward=own))
    assert environment.reward is own


async def test_the_page_does_what_it_says(prepared: Prepared, monkeypatch: pytest.MonkeyPatch) -> None:
    (code,) = examples("how-to/code-search.md", "python", {})
    (template,) = examples("how-to/code-search.md", "jinja", {})
    monkeypatch.chdir(prepared.folder)
    setup = prepared.setup(prepared.commits[0])
    names: dict[str, Any] = {"path": setup.data}
    source = 'repos="repos", dialect="files"'
    assert source in code
    exec(code.replace(source, f"{source}, source={str(prepared.origin)!r}"), names)
    assert len(names["environment"].tasks()) == 1
    own = prepared.folder / "system.j2"
    own.write_text(template)
    (task,) = opened(prepared.config(system_template=str(own)), setup).tasks()
    assert "5 calls a turn at most.\nAnswer within 6 turns." in task.messages[0]["content"]
