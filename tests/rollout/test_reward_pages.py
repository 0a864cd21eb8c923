"""The examples of docs/how-to/rewards.md and docs/how-to/environments.md do what the pages say."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from executor_service import Cause
from fairbox.errors import ConfigError
from rollout.config import RolloutConfig
from rollout.engines import SamplingParams
from rollout.envs import EnvironmentSetup, load_run
from rollout.loop import AgentLoop, Limits
from rollout.rewards import NotScored, RewardServices, Sample, load_reward
from rollout.testing import ScriptedEngine
from rollout.tokens import ChatTemplate, HubTokenizer
from rollout.tools import Toolbox
from tests.pages import examples
from tests.rollout.scripted import roll_out


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Folder that a user's modules are imported from."""
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)
    yield tmp_path
    for name in {"my_rewards", "sums"} & set(sys.modules) - before:
        del sys.modules[name]


async def test_the_rewards_of_the_page_are_composed(folder: Path) -> None:
    (folder / "my_rewards.py").write_text(examples("how-to/rewards.md", "python")[0])
    path = folder / "rewards.yaml"
    path.write_text(examples("how-to/rewards.md", "yaml")[0])
    composed = load_reward(str(path))
    found = await composed.score(Sample("so 6", "6"))
    assert found.value == pytest.approx(1.0 + 0.2 * (1 - 4 / 400))
    assert composed.name == "right and quick"
    exactly = load_reward("answers_exactly")
    assert (await exactly.score(Sample(" Yes", "yes"), RewardServices())).parts["answers_exactly/length"] == 3.0
    with pytest.raises(NotScored, match="the row has no ground truth") as caught:
        await exactly.score(Sample("yes", ""))
    assert caught.value.cause is Cause.TASK
    path.write_text(path.read_text().replace("most: 400", "beta: 400"))
    with pytest.raises(ConfigError) as mistake:
        load_reward(str(path))
    assert str(mistake.value).replace(f"{folder}/", "") == examples("how-to/rewards.md", "text")[0].strip()


async def test_the_environment_of_the_page_plays(folder: Path, tokenizer: HubTokenizer, chat: ChatTemplate) -> None:
    (folder / "sums.py").write_text(examples("how-to/environments.md", "python")[0])
    words = ["env=sums:Sums", "env_config.count=3"]
    config, kind, settings = load_run(RolloutConfig, prefix="ROLLOUT", prog="t", description="", argv=words, env={})
    assert (config.env, kind.name, settings.count) == ("sums:Sums", "sums", 3)
    environment: Any = kind.make(settings, EnvironmentSetup())
    engine = ScriptedEngine(tokenizer, lambda request, turn: "#### 20", vocab_size=49152)
    loop = AgentLoop(engine, chat, Toolbox([]), Limits(), SamplingParams())
    results = await roll_out(loop, environment.score, environment.tasks(), concurrency=4)
    assert {result.uid: result.reward.value for _, result in results if result.reward} == {
        "sum-0": 0.0,
        "sum-1": 1.0,
        "sum-2": 0.0,
    }
    with pytest.raises(ConfigError, match=r"env_config\.count is 0, must be at least 1"):
        load_run(RolloutConfig, prefix="R", prog="t", description="", argv=["env=sums", "env_config.count=0"], env={})


def test_an_environment_is_made_in_python_as_the_page_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "test.jsonl").write_text('{"question": "6 * 7?", "answer": "#### 42"}\n')
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(examples("how-to/environments.md", "python")[1], names)
    assert [task.ground_truth for task in names["tasks"]] == ["42"]
