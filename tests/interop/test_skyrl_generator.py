"""The generator with SkyRL's own input and validator; only the inference engine is scripted."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from fairbox.errors import ConfigError
from rollout.interop.skyrl.generator import FairboxGenerator
from rollout.stack import LocalStack
from rollout.tokens import ChatTemplate, HubTokenizer

pytest.importorskip("skyrl_train", reason="skyrl-train is not installed: make test-interop")

pytestmark = [pytest.mark.skyrl, pytest.mark.asyncio(loop_scope="module"), pytest.mark.filterwarnings("ignore")]

CALL = '<tool_call>\n{"name": "code_interpreter", "arguments": {"code": "print(6 * 7)"}}\n</tool_call>'


class ScriptedClient:
    """SkyRL's client as a generator sees it. A session whose script is an exception always raises it."""

    def __init__(self, tokenizer: HubTokenizer, chat: ChatTemplate, scripts: Sequence[Sequence[str] | Exception]):
        self._tokenizer = tokenizer
        self._end = chat.end_of_turn
        self._scripts = list(scripts)
        self._sessions: dict[Any, Any] = {}
        self.asked: list[Any] = []

    async def generate(self, question: Any, **options: Any) -> Any:
        session = question["session_ids"][0]
        if session not in self._sessions:
            script = self._scripts.pop(0)
            self._sessions[session] = script if isinstance(script, Exception) else iter(script)
        said = self._sessions[session]
        if isinstance(said, Exception):
            raise said
        self.asked.append((question, options))
        ids = [*self._tokenizer.encode(next(said)), self._end]
        return {
            "responses": ["..."],
            "response_ids": [ids],
            "stop_reasons": ["stop"],
            "response_logprobs": [[-0.5] * len(ids)],
        }


def batch(count: int) -> Any:
    from skyrl_train.generators.base import BatchMetadata, GeneratorInput, TrajectoryID

    return GeneratorInput(
        prompts=[[{"role": "user", "content": "6 * 7?"}]] * count,
        env_classes=["fairbox"] * count,
        env_extras=[{"reward_spec": {"ground_truth": "42"}}] * count,
        sampling_params={"temperature": 0.7, "top_k": -1},
        trajectory_ids=[TrajectoryID(str(index // 2), index % 2) for index in range(count)],
        batch_metadata=BatchMetadata(global_step=1, training_phase="train"),
    )


def generator(stack: LocalStack, client: Any, model_dir: Any, **settings: Any) -> FairboxGenerator:
    from transformers import AutoTokenizer

    tool = {"executor": stack.ports.executor, "limiter": stack.ports.limiter}
    tokenizer = AutoTokenizer.from_pretrained(model_dir)
    return FairboxGenerator(client, tokenizer, {"tool": tool} | settings, options={"model": "m"})


async def test_generator_plays_and_skyrl_takes_it(
    stack: LocalStack, tokenizer: HubTokenizer, chat: ChatTemplate, model_dir: Any
) -> None:
    from skyrl_train.utils.trainer_utils import validate_generator_output

    good, wrong, gone = [CALL, "#### 42"], ["#### 41"], RuntimeError("gone")
    client = ScriptedClient(tokenizer, chat, [good, wrong, gone, good, gone])
    input_batch = batch(4)
    # One at a time, so that the order of the scripts is that of the prompts.
    output = await generator(stack, client, model_dir, concurrency=1, infra_retries=0).generate(input_batch)
    validate_generator_output(4, output)
    assert output["rewards"] == [1.0, 0.0, 0.0, 1.0]
    assert output["stop_reasons"] == ["answered", "answered", "infra", "answered"]
    assert [sum(mask) > 0 for mask in output["loss_masks"]] == [True, True, False, False]
    said = [token for token, bit in zip(output["response_ids"][0], output["loss_masks"][0], strict=True) if bit]
    assert tokenizer.decode(said) == f"{CALL}<|im_end|>#### 42<|im_end|>"
    assert "tool\n42<|im_end|>" in tokenizer.decode(output["response_ids"][0])
    assert output["trajectory_ids"] == input_batch["trajectory_ids"]
    question, options = client.asked[0]
    assert (question["sampling_params"]["temperature"], options) == (0.7, {"model": "m"})


async def test_what_the_service_failed_is_played_again(
    stack: LocalStack, tokenizer: HubTokenizer, chat: ChatTemplate, model_dir: Any
) -> None:
    client = ScriptedClient(tokenizer, chat, [RuntimeError("gone"), ["#### 42"]])
    output = await generator(stack, client, model_dir).generate(batch(1))
    assert (output["rewards"], output["stop_reasons"]) == ([1.0], ["answered"])


async def test_rewards_come_from_a_file_and_what_has_none_is_masked_with_its_group(
    stack: LocalStack, tokenizer: HubTokenizer, chat: ChatTemplate, model_dir: Any, tmp_path: Any
) -> None:
    path = tmp_path / "rewards.yaml"
    path.write_text("reward: [{fn: gsm8k, weight: 2}]")
    client = ScriptedClient(tokenizer, chat, [["#### 42"], ["#### 41"]])
    output = await generator(stack, client, model_dir, concurrency=1, reward=str(path)).generate(batch(2))
    assert output["rewards"] == [2.0, 0.0]
    assert output["rollout_metrics"]["reward/gsm8k/correct"] == 0.5
    client = ScriptedClient(tokenizer, chat, [["#### 42"], ["#### 41"]])
    unscored = generator(stack, client, model_dir, reward="tests.interop.test_scores:untestable")
    output = await unscored.generate(batch(2))
    assert (output["rewards"], [sum(mask) for mask in output["loss_masks"]]) == ([0.0, 0.0], [0, 0])
    other = tmp_path / "other.yaml"
    other.write_text("reward: [{fn: gsm8k, args: {metod: strict}}]")
    with pytest.raises(ConfigError, match=r"reward\[0\]\.args\.metod is not an argument of gsm8k; did you mean method"):
        generator(stack, None, model_dir, reward=str(other))


async def test_template_is_given_the_options_of_the_settings(
    stack: LocalStack, tokenizer: HubTokenizer, chat: ChatTemplate, model_dir: Any, tmp_path: Path
) -> None:
    template = "{% if shout is defined %}{{ bos_token }}{{ shout }}{% endif %}" + str(tokenizer._template)
    path = tmp_path / "shouting.jinja"
    path.write_text(template, encoding="utf-8")
    client = ScriptedClient(tokenizer, chat, [["It is 42."]])
    given = {"template": str(path), "options": '{"shout": "LOUD"}'}
    await generator(stack, client, model_dir, chat=given).generate(batch(1))
    assert tokenizer.decode(client.asked[0][0]["prompt_token_ids"][0]).startswith("<|im_start|>LOUD")


async def test_bad_settings_and_rows_are_refused(stack: LocalStack, model_dir: Any) -> None:
    with pytest.raises(ConfigError, match="backend is 'tgi', must be one of: vllm, sglang"):
        generator(stack, None, model_dir, backend="tgi")
    with pytest.raises(ConfigError, match=r"no reward_spec\.ground_truth"):
        await generator(stack, None, model_dir).generate(batch(1) | {"env_extras": [{}]})
