"""The environment of programming problems: prompts without tests, each row graded by the function of its kind."""

from __future__ import annotations

import json
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from executor_service import Cause
from fairbox.errors import ConfigError
from rollout.engines import SamplingParams
from rollout.envs import EnvironmentSetup, find_environment
from rollout.envs.code import CodeConfig, CodeEnvironment
from rollout.loop import AgentLoop, Limits, TrajectoryResult
from rollout.rewards import NotScored, RewardServices, load_reward
from rollout.testing import ScriptedEngine
from rollout.tokens import ChatTemplate, HubTokenizer
from rollout.tools import Toolbox
from tests.rollout.published_rows import CODE_CONTESTS, SUM

Play = Callable[[CodeEnvironment, list[str]], Awaitable[list[TrajectoryResult]]]
ROWS = [
    {
        "task_id": "HumanEval/x",
        "prompt": 'def twice(n):\n    """Two times n."""\n',
        "entry_point": "twice",
        "test": "def check(candidate):\n    assert candidate(4) == 8\n    assert candidate(0) == 0\n",
    },
    {"task_id": 7, "text": "Add one.", "test_list": ["assert inc(1) == 2", "assert inc(-1) == 0"]},
    {"question": "Echo a line.", "input_output": json.dumps({"inputs": ["a\n", "b\n"], "outputs": ["a", "b"]})},
]
RIGHT = ["def twice(n):\n    return n + n", "def inc(n):\n    return n + 1", "print(input())"]
HALF = ["def twice(n):\n    return 8", "def inc(n):\n    return 2", "print('a')"]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "problems.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return path


@pytest.fixture
def play(tokenizer: HubTokenizer, chat: ChatTemplate) -> Play:
    """A trajectory of each task, whose one turn has the program."""

    async def played(environment: CodeEnvironment, programs: list[str]) -> list[TrajectoryResult]:
        results = []
        for task, program in zip(environment.tasks(), programs, strict=True):
            fenced = program if program.startswith("```") else f"```python\n{program}\n```"
            engine = ScriptedEngine(tokenizer, [f"Here it is.\n{fenced}"], vocab_size=49152)
            loop = AgentLoop(engine, chat, Toolbox([]), Limits(), SamplingParams())
            results.append(await loop.run(task, index=0, seed=1))
        return results

    return played


async def test_each_row_is_graded_by_its_kind(data: Path, play: Play, services: RewardServices) -> None:
    environment = CodeEnvironment(CodeConfig(), EnvironmentSetup(data=data))
    environment.services = services
    for programs, wanted in ((RIGHT, [1.0, 1.0, 1.0]), (HALF, [0.0, 0.0, 0.0])):
        results = await play(environment, programs)
        rewards = [await environment.score(*pair) for pair in zip(environment.tasks(), results, strict=True)]
        assert [reward.value for reward in rewards] == wanted
    assert [name for reward in rewards for name in reward.parts if "/" not in name] == [
        "humaneval",
        "code_asserts",
        "code_tests",
    ]


def test_no_prompt_has_a_test_that_the_data_does_not_show(data: Path) -> None:
    tasks = CodeEnvironment(CodeConfig(), EnvironmentSetup(data=data)).tasks()
    prompts = [str(task.messages) for task in tasks]
    assert ["candidate(4)" in prompts[0], "inc(-1)" in prompts[1], "outputs" in prompts[2]] == [False] * 3
    assert [task.uid for task in tasks] == ["0-HumanEval/x", "1-mbpp/7", f"2-{data}:3"]
    assert "Complete this function" in prompts[0]


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
async def test_programs_of_another_language(tmp_path: Path, play: Play, services: RewardServices) -> None:
    data = tmp_path / "sums.jsonl"
    data.write_text(json.dumps(CODE_CONTESTS) + "\n")
    environment = CodeEnvironment(CodeConfig(language="cpp"), EnvironmentSetup(data=data))
    environment.services = services
    (task,) = environment.tasks()
    asked = "Write C++ code. Put the whole program into one block, at the end of your answer:\n```cpp\n...\n```"
    assert task.messages[-1]["content"] == f"Print the sum.\n\n{asked}"
    right = "```cpp\n#include <iostream>\nint main() { int a, b; std::cin >> a >> b; std::cout << a + b; }\n```"
    for program, value in ((right, 1.0), (right.replace("a + b", "a - b"), 0.0), (SUM, 0.0)):
        (result,) = await play(environment, [program])
        assert (await environment.score(task, result)).value == value


async def test_without_an_executor_nothing_is_scored(data: Path, play: Play) -> None:
    environment = CodeEnvironment(CodeConfig(), EnvironmentSetup(data=data, limit=1))
    [result] = await play(environment, RIGHT[:1])
    with pytest.raises(NotScored, match="no executor") as caught:
        await environment.score(environment.tasks()[0], result)
    assert caught.value.cause is Cause.INFRA


def test_settings(data: Path) -> None:
    assert find_environment("code").config_type is CodeConfig
    setup = EnvironmentSetup(data=data)
    assert CodeEnvironment(CodeConfig(), setup).tools() is None
    assert CodeEnvironment(CodeConfig(interpreter=False), setup).tools() == ()
    with pytest.raises(ConfigError, match="data is none"):
        CodeEnvironment(CodeConfig(), EnvironmentSetup())
    with pytest.raises(ConfigError, match=rf"env_config.language is 'cpp', but the tests of {data}:1 call Python"):
        CodeEnvironment(CodeConfig(language="cpp"), setup)
    own = load_reward("gsm8k")
    assert CodeEnvironment(CodeConfig(), EnvironmentSetup(data=data, reward=own))._rewards["humaneval"] is own
