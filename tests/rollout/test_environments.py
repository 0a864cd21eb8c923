"""Environments by name: their settings beside the run's, and what is wrong in one sentence."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from fairbox.config import setting
from fairbox.errors import ConfigError
from rollout.build import tool_specs
from rollout.config import RolloutConfig
from rollout.envs import (
    Environment,
    EnvironmentSetup,
    Gsm8kConfig,
    environment,
    environment_names,
    find_environment,
    load_run,
)
from rollout.loop import Task, TrajectoryResult
from rollout.rewards import Reward, load_reward
from rollout.tools.gsm8k_reward import Gsm8kRewardTool


@dataclass(frozen=True)
class OneConfig:
    times: int = setting(1, help="How often.")
    loud: bool = setting(False, help="Whether.")

    def validate(self) -> None:
        if self.times < 1:
            raise ConfigError(f"env_config.times is {self.times}, must be at least 1")


@environment("tests/one", OneConfig)
class One(Environment):
    def __init__(self, config: OneConfig, setup: EnvironmentSetup) -> None:
        self.config = config

    def tasks(self) -> list[Task]:
        return [Task("0", ({"role": "user", "content": "?"},), "", "", "here")] * self.config.times

    async def score(self, task: Task, result: TrajectoryResult) -> Reward:
        return Reward(1.0)


def loaded(*words: str, env: dict[str, str] | None = None) -> tuple[RolloutConfig, object, object]:
    return load_run(RolloutConfig, prefix="ROLLOUT", prog="t", description="", argv=words, env=env or {})


def test_settings_of_the_named_environment_stand_beside_the_runs(tmp_path: Path) -> None:
    config, kind, settings = loaded("env=tests/one", "env_config.times=3", "--env-config.loud", "n=2")
    assert (type(config), config.n, settings) == (RolloutConfig, 2, OneConfig(3, loud=True))
    assert kind == find_environment("tests/one")
    assert find_environment(f"{__name__}:One") == kind
    _, _, own = loaded()
    assert own == Gsm8kConfig()
    path = tmp_path / "run.yaml"
    path.write_text("env: tests/one\nenv_config: {times: 4}\n")
    assert loaded(f"config={path}")[2] == OneConfig(4)
    assert loaded("--config", str(path), env={"ROLLOUT_ENV_CONFIG__TIMES": "5"})[2] == OneConfig(5)
    assert loaded("--env", "gsm8k", env={"ROLLOUT_ENV": "tests/one"})[2] == Gsm8kConfig()
    assert loaded(env={"ROLLOUT_ENV": "tests/one"})[2] == OneConfig()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["env=gsm9k"], "env is 'gsm9k', must be one of: .*gsm8k.*; or module:class"),
        (["env=tests/one", "env_config.time=3"], r"env_config\.time .*did you mean env_config\.times\?"),
        (["env=tests/one", "env_config.times=x"], r"env_config\.times is 'x'"),
        (["env=tests/one", "env_config.times=0"], r"env_config\.times is 0, must be at least 1"),
        (["env_config.times=3"], r"env_config\.times .*is not a setting"),
        (["env=nowhere.at_all:X"], "env is 'nowhere.at_all:X': No module named"),
        ([f"env={__name__}:absent"], "has no attribute 'absent'"),
        ([f"env={__name__}:OneConfig"], "which is not registered: OneConfig needs @environment"),
        (["env_config.prompt=loud"], r"env_config\.prompt is 'loud', must be one of: code, plain, submit, data"),
        (["env_config.method=any"], r"env_config\.method is 'any', must be one of: strict, flexible"),
        (["env_config.format_score=inf"], r"env_config\.format_score is inf"),
        (["score_timeout_s=0"], r"score_timeout_s is 0.0, must be positive"),
    ],
)
def test_every_mistake_is_one_sentence(words: list[str], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        loaded(*words)


def test_help_lists_the_settings_of_the_named_environment(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        loaded("env=tests/one", "--help")
    shown = capsys.readouterr().out
    assert "--env-config.times" in shown
    assert "--env-config.prompt" not in shown


def test_a_name_is_taken_once() -> None:
    assert "tests/one" in environment_names()
    with pytest.raises(ValueError, match="registered already"):
        environment("tests/one", OneConfig)(lambda config, setup: One(config, setup))
    with pytest.raises(ValueError, match="is no dataclass"):
        environment("tests/two", int)(One)


def test_tools_are_those_of_the_file_of_the_environment_or_the_code_interpreter(tmp_path: Path) -> None:
    kind = find_environment("gsm8k")
    code, plain, submit = (
        kind.make(Gsm8kConfig(prompt=prompt), EnvironmentSetup(limit=1)) for prompt in ("code", "plain", "submit")
    )
    assert [spec.path for spec in tool_specs(RolloutConfig(), code)] == ["tool"]
    assert tool_specs(RolloutConfig(), plain) == ()
    assert [spec.kind for spec in tool_specs(RolloutConfig(), submit)] == [Gsm8kRewardTool]
    file = tmp_path / "tools.yaml"
    file.write_text("tools: [{class_name: rollout.tools.code.BashTool}]\n")
    assert [spec.path for spec in tool_specs(RolloutConfig(tools=str(file)), submit)] == [f"{file}: tools[0]"]
    config, _, _ = loaded("tool.default_timeout=3")
    with pytest.raises(ConfigError, match=r"tool\.\* is set, but the tools are those of env=gsm8k"):
        tool_specs(config, plain)


def test_settings_of_a_reward_that_the_run_replaces_are_refused() -> None:
    setup = EnvironmentSetup(limit=1, reward=load_reward("gsm8k"))
    with pytest.raises(ConfigError, match="has no meaning with a reward of the run"):
        find_environment("gsm8k").make(Gsm8kConfig(method="flexible"), setup)
    assert find_environment("gsm8k").make(Gsm8kConfig(), setup).tasks()
