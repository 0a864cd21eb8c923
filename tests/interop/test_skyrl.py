"""SkyRL's own types, validator and gym, given fairbox's trajectories and its environment."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest

from fairbox.errors import ConfigError, FieldErrors
from rollout.interop.portal import process_loop
from rollout.interop.skyrl.convert import generator_output
from rollout.stack import LocalStack
from tests.interop.results import result, sampled, tool
from tests.pages import examples

GOOD = result([1, 2, 3], sampled([4, 5]), tool([6, 7]), sampled([8]), uid="a", reward=1.0)
BAD = result([1, 2, 3], sampled([9]), uid="a", reward=0.0)
LOST = result([1], sampled([9, 9]), uid="b", infra=True)
BESIDE = result([1], sampled([4]), uid="b", reward=1.0)
EMPTY = result([1], uid="c", infra=True)
ALL = [GOOD, BAD, LOST, BESIDE, EMPTY]


def test_rows_are_the_trajectories() -> None:
    output = generator_output(ALL, pad_token_id=0)
    assert output["prompt_token_ids"][0] == [1, 2, 3]
    assert output["response_ids"] == [[4, 5, 6, 7, 8], [9], [9, 9], [4], [0]]
    assert output["loss_masks"] == [[1, 1, 0, 0, 1], [1], [0, 0], [0], [0]]
    assert output["rollout_logprobs"][0] == [-0.5, -0.5, 0.0, 0.0, -0.5]
    assert output["rewards"] == [1.0, 0.0, 0.0, 1.0, 0.0]
    assert output["stop_reasons"] == ["answered", "answered", "infra", "answered", "infra"]
    assert output["rollout_metrics"]["generate/num_masked"] == 2.0
    assert output["rollout_metrics"]["fairbox/not_trained_on"] == 0.6


def test_a_group_can_keep_what_the_service_did_not_fail() -> None:
    masks = generator_output(ALL, pad_token_id=0, mask_groups=False)["loss_masks"]
    assert masks[2:] == [[0, 0], [1], [0]]


def test_rewards_can_stand_at_the_last_sampled_token() -> None:
    rewards = generator_output([GOOD, LOST], pad_token_id=0, token_rewards=True)["rewards"]
    assert rewards == [[0.0, 0.0, 0.0, 0.0, 1.0], [0.0, 0.0]]


def test_bad_input_is_refused() -> None:
    with pytest.raises(FieldErrors, match="results leaves no row: it is empty"):
        generator_output([], pad_token_id=0)
    with pytest.raises(FieldErrors, match="trajectory_ids has 1 for 2 results"):
        generator_output([GOOD, BAD], pad_token_id=0, trajectory_ids=["x"])


@pytest.mark.skyrl
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("token_rewards", [False, True])
def test_skyrls_validator_takes_it(token_rewards: bool) -> None:
    pytest.importorskip("skyrl_train", reason="skyrl-train is not installed: make test-interop")
    from skyrl_train.generators.base import GeneratorOutput, TrajectoryID
    from skyrl_train.utils.trainer_utils import validate_generator_output

    ids = [TrajectoryID(each.uid, index) for index, each in enumerate(ALL)]
    output = generator_output(ALL, pad_token_id=0, trajectory_ids=ids, token_rewards=token_rewards)
    validate_generator_output(len(ALL), output)
    assert set(GeneratorOutput.__annotations__) <= set(output)
    broken = output | {"loss_masks": [[1]] * len(ALL)}
    with pytest.raises(AssertionError, match="same length"):
        validate_generator_output(len(ALL), broken)


CALL = '<tool_call>\n{{"name": "code_interpreter", "arguments": {{"code": "{}"}}}}\n</tool_call>'
ROW = {"reward_spec": {"method": "rule", "ground_truth": "42"}, "max_turns": 4}


@pytest.fixture(scope="module")
def gym() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        gym = pytest.importorskip("skyrl_gym", reason="skyrl-gym is not installed: make test-interop")
    gym.register(id="fairbox", entry_point="rollout.interop.skyrl.env:FairboxEnv")
    return gym


def make(gym: Any, stack: LocalStack, **config: Any) -> Any:
    tool = {"executor": stack.ports.executor, "limiter": stack.ports.limiter}
    return gym.make("fairbox", env_config={"tool": tool} | config, extras=dict(ROW))


@pytest.mark.skyrl
@pytest.mark.asyncio(loop_scope="module")
async def test_episode_of_skyrl_gym(gym: Any, stack: LocalStack) -> None:
    env = make(gym, stack)
    prompt, _ = env.init([{"role": "user", "content": "6 * 7?"}])
    assert [message["role"] for message in prompt] == ["system", "user"]
    assert '{"type": "function", "function": {"name": "code_interpreter"' in prompt[0]["content"]
    step = env.step(CALL.format("print(6 * 7)") + CALL.format("print('<|im_end|>')"))
    assert (step["done"], step["reward"]) == (False, 0.0)
    assert step["observations"] == [{"role": "tool", "content": "42"}, {"role": "tool", "content": "< |im_end|>"}]
    step = env.step('<tool_call>\n{"name": \n</tool_call>')
    assert step["observations"][0]["content"].startswith("Error: the tool call is malformed: its JSON")
    step = env.step("#### 42")
    assert (step["done"], step["reward"], step["observations"]) == (True, 1.0, [])
    assert env.get_metrics() == {"turns": 3, "tool_calls": 3, "infra": 0}
    env.close()
    env.close()
    assert type(env).aggregate_metrics([env.get_metrics()])["tool_calls"] == 3


@pytest.mark.skyrl
@pytest.mark.asyncio(loop_scope="module")
async def test_environment_of_the_page_works(gym: Any, stack: LocalStack) -> None:
    addresses = {"127.0.0.1:50051": stack.ports.executor, "127.0.0.1:50052": stack.ports.limiter}
    names: dict[str, Any] = {}
    gym.envs.deregister("fairbox")
    exec(examples("how-to/skyrl.md", "python", addresses)[0], names)
    assert names["env"].step(CALL.format("print(6 * 7)"))["observations"] == [{"role": "tool", "content": "42"}]
    assert names["env"].step("#### 42")["reward"] == 1.0
    names["env"].close()


@pytest.mark.skyrl
@pytest.mark.asyncio(loop_scope="module")
async def test_last_turn_is_scored_and_not_answered(gym: Any, stack: LocalStack) -> None:
    env = gym.make("fairbox", env_config={}, extras=ROW | {"max_turns": 1})
    step = env.step(CALL.format("print(42)"))
    assert (step["done"], step["reward"], step["observations"]) == (True, 0.0, [])
    env.close()


@pytest.mark.skyrl
@pytest.mark.asyncio(loop_scope="module")
async def test_failing_service_ends_the_episode_without_a_word(gym: Any) -> None:
    async with LocalStack() as stack:
        env = make(gym, stack)
        assert env.step(CALL.format("print(1)"))["observations"][0]["content"] == "1"
        os.kill(stack.pid("executor_service"), signal.SIGKILL)
        step = env.step(CALL.format("print(1)"))
    assert (step["done"], step["reward"], step["observations"]) == (True, 0.0, [])
    assert "executor" in step["metadata"]["infra"]
    assert env.get_metrics()["infra"] == 1
    env.close()


@pytest.mark.skyrl
def test_an_episode_is_scored_by_a_file_and_unscored_ones_are_said(gym: Any, tmp_path: Path) -> None:
    path = tmp_path / "rewards.yaml"
    path.write_text("reward: [{fn: gsm8k, weight: 2}]")
    env = gym.make("fairbox", env_config={"reward": str(path)}, extras=dict(ROW))
    step = env.step("#### 42")
    assert (step["done"], step["reward"], step["metadata"]["reward_parts"]["gsm8k"]) == (True, 2.0, 1.0)
    env = gym.make("fairbox", env_config={"reward": "tests.interop.test_scores:untestable"}, extras=dict(ROW))
    step = env.step("#### 42")
    assert (step["done"], step["reward"], step["metadata"]) == (True, 0.0, {"infra": "untestable: it has no tests"})
    assert env.get_metrics()["infra"] == 1


@pytest.mark.skyrl
@pytest.mark.parametrize(
    ("config", "row", "problem"),
    [
        ({"max_turn": 3}, ROW, "environment fairbox: max_turn .* is not a setting"),
        ({"reward": "nope"}, ROW, "reward is 'nope': reward 'nope' is not registered"),
        ({"reward": "os:nope"}, ROW, "reward is 'os:nope': module 'os' has no attribute 'nope'"),
        ({}, {}, r"the row has no reward_spec\.ground_truth"),
    ],
)
def test_bad_settings_fail_when_the_environment_is_made(
    gym: Any, config: dict[str, Any], row: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ConfigError, match=problem):
        gym.make("fairbox", env_config=config, extras=row)


def test_calls_into_the_loop_have_a_deadline() -> None:
    import asyncio

    with pytest.raises(TimeoutError, match=r"no answer within 0\.05 s"):
        process_loop().call(asyncio.sleep(60), timeout=0.05)
    assert process_loop().call(asyncio.sleep(0, "done"), timeout=30) == "done"


def test_a_process_that_used_the_loop_ends_by_itself() -> None:
    program = (
        "import asyncio; from rollout.interop.portal import process_loop; "
        "print(process_loop().call(asyncio.sleep(0, 7), timeout=30))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "7\n", "")
