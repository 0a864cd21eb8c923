"""`FairboxAgentLoop` in verl's own `AgentLoopWorker`: its configuration, registry, padding and `DataProto`.

Only the inference server is scripted: it answers with verl's own `TokenOutput`.
"""

from __future__ import annotations

import json
import shlex
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from rollout.interop.settings import from_mapping
from rollout.interop.shared import close_shared
from rollout.stack import LocalStack
from rollout.tokens import ChatTemplate, HubTokenizer
from tests.pages import examples
from tests.rollout.families import FOLDER
from tests.rollout.service.serving import Tier

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    verl = pytest.importorskip("verl", reason="verl is not installed: make test-interop")
    from hydra import compose, initialize_config_dir
    from omegaconf import OmegaConf
    from verl.experimental.agent_loop.agent_loop import AgentLoopOutput, AgentLoopWorker, DictConfigWrap
    from verl.protocol import DataProto
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import validate_config
    from verl.workers.rollout.replica import TokenOutput

    from rollout.interop.verl.agent_loop import AgentLoopSettings, FairboxAgentLoop, TrajectoryLeftOut

pytestmark = [pytest.mark.verl, pytest.mark.asyncio(loop_scope="module"), pytest.mark.filterwarnings("ignore")]

CALL = '<tool_call>\n{{"name": "code_interpreter", "arguments": {{"code": "print({})"}}}}\n</tool_call>'
PROMPT = [{"role": "user", "content": "What is 6 * 7?"}]


class ScriptedServer:
    """verl's `LLMServerClient` as an agent loop sees it. What it says depends on the turn, or it raises."""

    def __init__(self, tokenizer: HubTokenizer, chat: ChatTemplate, turns: Sequence[str | Exception]) -> None:
        self._tokenizer = tokenizer
        self._chat = chat
        self._turns = turns
        self._turn: dict[str, int] = {}
        self.asked: list[tuple[str, list[int], dict[str, Any]]] = []
        self.stop_reason = "stop"
        self.says_in_turn: list[str] = []
        """Answers to one request after the other, whatever their turn; empty: those of the turn."""

    async def generate(
        self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any], **kwargs: Any
    ) -> Any:
        turn = self._turn.setdefault(request_id, 0)
        self._turn[request_id] += 1
        self.asked.append((request_id, prompt_ids, sampling_params))
        said = self.says_in_turn.pop(0) if self.says_in_turn else self._turns[turn]
        if isinstance(said, Exception):
            raise said
        ids = [*self._tokenizer.encode(said), self._chat.end_of_turn][: sampling_params["max_tokens"]]
        steps = {"min_global_steps": 4, "max_global_steps": 4 + turn}
        return TokenOutput(
            token_ids=ids, log_probs=[-0.25] * len(ids), stop_reason=self.stop_reason, extra_fields=steps
        )


MakeWorker = Callable[..., tuple[AgentLoopWorker, ScriptedServer]]


@pytest.fixture
def make_worker(
    stack: LocalStack, model_dir: Path, tokenizer: HubTokenizer, chat: ChatTemplate, tmp_path: Path
) -> MakeWorker:
    def make(
        turns: Sequence[str | Exception], *, use_v1: bool = False, response_length: int = 256, **settings: Any
    ) -> tuple[AgentLoopWorker, ScriptedServer]:
        tool = {"executor": stack.ports.executor, "limiter": stack.ports.limiter}
        loop = {
            "name": "fairbox",
            "_target_": "rollout.interop.verl.agent_loop.FairboxAgentLoop",
            "settings": {"tool": tool} | settings,
        }
        path = tmp_path / "loop.yaml"
        path.write_text(json.dumps([loop]))
        config = OmegaConf.load(Path(verl.__file__).parent / "trainer/config/_generated_ppo_trainer.yaml")
        config.actor_rollout_ref.model.path = str(model_dir)
        rollout = config.actor_rollout_ref.rollout
        rollout.name, rollout.prompt_length, rollout.response_length = "sglang", 512, response_length
        rollout.agent.agent_loop_config_path = str(path)
        rollout.agent.default_agent_loop = "fairbox"
        config.trainer.use_v1 = use_v1
        server = ScriptedServer(tokenizer, chat, turns)
        return AgentLoopWorker(config, server), server

    return make


def rows(count: int) -> DataProto:
    prompts = np.empty(count, dtype=object)
    prompts[:] = [PROMPT] * count
    return DataProto(non_tensor_batch={"raw_prompt": prompts, "index": np.arange(count)}, meta_info={"global_steps": 1})


async def alone(worker: AgentLoopWorker, **row: Any) -> AgentLoopOutput | list[AgentLoopOutput]:
    """Result of the loop itself."""
    import hydra

    loop = hydra.utils.instantiate(
        {"_target_": "rollout.interop.verl.agent_loop.FairboxAgentLoop", "settings": worker_settings(worker)},
        trainer_config=DictConfigWrap(worker.config),
        server_manager=worker.llm_client,
        tokenizer=worker.tokenizer,
        processor=worker.processor,
        hf_model_type=worker.hf_model_type,
        dataset_cls=worker.dataset_cls,
        data_config=DictConfigWrap(worker.config.data),
        tools=None,
    )
    assert isinstance(loop, FairboxAgentLoop)
    return await loop.run({"temperature": 1.0, "top_p": 1.0, "top_k": -1}, raw_prompt=PROMPT, index=0, **row)


def worker_settings(worker: AgentLoopWorker) -> Any:
    return OmegaConf.load(worker.config.actor_rollout_ref.rollout.agent.agent_loop_config_path)[0].settings


async def test_worker_gets_exact_rows_of_tool_calling_trajectories(
    make_worker: MakeWorker, tokenizer: HubTokenizer
) -> None:
    worker, server = make_worker([CALL.format("6 * 7"), "It is 42."])
    batch = await worker.generate_sequences(rows(3))
    assert batch.batch["responses"].shape == (3, 256)
    for row in range(3):
        mask = batch.batch["response_mask"][row].bool()
        there = batch.batch["attention_mask"][row][512:].bool()
        response = batch.batch["responses"][row]
        said = tokenizer.decode(response[mask].tolist())
        assert said == CALL.format("6 * 7") + "<|im_end|>It is 42.<|im_end|>"
        assert "tool\n42<|im_end|>\n" in tokenizer.decode(response[there & ~mask].tolist())
        logprobs = batch.batch["rollout_log_probs"][row]
        assert logprobs[mask].unique().tolist() == [-0.25]
        assert logprobs[~mask].unique().tolist() == [0.0]
    assert batch.non_tensor_batch["__num_turns__"].tolist() == [4, 4, 4]
    assert batch.non_tensor_batch["min_global_steps"].tolist() == [4, 4, 4]
    assert batch.non_tensor_batch["max_global_steps"].tolist() == [5, 5, 5]
    assert batch.non_tensor_batch["fairbox_masked"].tolist() == [False] * 3
    first, second = [ids for trajectory, ids, _ in server.asked if trajectory == server.asked[0][0]]
    assert second[: len(first)] == first
    assert server.asked[0][2]["logprobs"] is True


@pytest.mark.parametrize("page", ["how-to/verl.md", "tutorials/verl.md"])
async def test_loop_file_of_the_page_is_taken(page: str) -> None:
    (loop,) = yaml.safe_load(next(block for block in examples(page, "yaml") if "FairboxAgentLoop" in block))
    target = f"{FairboxAgentLoop.__module__}.{FairboxAgentLoop.__qualname__}"
    assert (loop["name"], loop["_target_"]) == ("fairbox", target)
    assert from_mapping(AgentLoopSettings, loop["settings"], "page").tool.executor == "127.0.0.1:50051"


async def test_training_command_of_the_tutorial_is_what_verl_takes() -> None:
    command = next(block for block in examples("tutorials/verl.md", "sh") if "main_ppo" in block)
    words = shlex.split(command.replace("\\\n", " ").replace("$PWD", "/run"))
    with initialize_config_dir(str(Path(verl.__file__).parent / "trainer/config"), version_base=None):
        config = compose("ppo_trainer", overrides=[word for word in words if "=" in word])
    validate_config(config, use_reference_policy=need_reference_policy(config), use_critic=need_critic(config))
    assert config.actor_rollout_ref.rollout.agent.default_agent_loop == "fairbox"
    assert config.trainer.use_v1, "the page says what the default trainer does"


async def test_response_length_is_never_exceeded(make_worker: MakeWorker) -> None:
    worker, _ = make_worker([CALL.format("'x ' * 400"), "never"], response_length=48)
    batch = await worker.generate_sequences(rows(1))
    assert batch.non_tensor_batch["fairbox_stop_reason"].tolist() == ["response_length"]
    assert batch.batch["responses"].shape == (1, 48)


async def test_server_that_fails_is_tried_again_and_then_masked(make_worker: MakeWorker) -> None:
    worker, server = make_worker([RuntimeError("the server is gone")])
    batch = await worker.generate_sequences(rows(1))
    assert len(server.asked) == 2
    assert batch.batch["response_mask"].sum().item() == 0
    assert batch.batch["rm_scores"].sum().item() == 0
    assert batch.non_tensor_batch["fairbox_masked"].tolist() == [True]
    assert "the server is gone" in batch.non_tensor_batch["fairbox_infra"][0]


async def test_aborted_requests_are_the_services_fault(make_worker: MakeWorker) -> None:
    worker, server = make_worker(["half a sen"], infra_retries=0)
    server.stop_reason = "aborted"
    output = await alone(worker)
    assert isinstance(output, AgentLoopOutput)
    assert output.extra_fields["fairbox_infra"] == "verl's server aborted the request"


async def test_new_trainer_gets_no_row_where_the_service_failed(make_worker: MakeWorker) -> None:
    worker, _ = make_worker([RuntimeError("gone")], use_v1=True, infra_retries=0)
    with pytest.raises(TrajectoryLeftOut, match="gone"):
        await alone(worker)
    worker, _ = make_worker([RuntimeError("gone")], use_v1=True, infra_retries=0, infra_rows="mask")
    output = await alone(worker)
    assert isinstance(output, AgentLoopOutput)
    assert set(output.response_mask) == {0}
    worker, _ = make_worker(["never"], infra_rows="keep")
    with pytest.raises(Exception, match="infra_rows is 'keep', must be one of: auto, drop, mask"):
        await alone(worker)


async def test_prompt_that_is_too_long_is_left_out_and_never_cut(make_worker: MakeWorker) -> None:
    worker, server = make_worker(["never"])
    worker.config.actor_rollout_ref.rollout.prompt_length = 8
    output = await alone(worker)
    assert isinstance(output, AgentLoopOutput)
    assert (output.response_mask, output.extra_fields["fairbox_cause"], server.asked) == ([0], "TASK", [])


async def test_a_rollout_service_plays_with_its_own_engine_and_reward(
    make_worker: MakeWorker, tokenizer: HubTokenizer, chat: ChatTemplate, tmp_path: Path
) -> None:
    async with Tier(tokenizer, chat, tmp_path / "out").process() as served:
        worker, server = make_worker([], service={"target": served.address}, response_length=4096)
        output = await alone(worker, reward_model={"ground_truth": "42"})
        await close_shared()
    assert isinstance(output, AgentLoopOutput)
    assert (server.asked, served.trajectories.totals.ended) == ([], 1)
    assert sum(output.response_mask) > 0
    said = chat.decode_plain(output.response_ids).strip()
    assert output.reward_score == float(said.endswith("#### 42"))


async def test_template_is_given_the_options_of_verls_data(make_worker: MakeWorker, tokenizer: HubTokenizer) -> None:
    template = tokenizer._template
    worker, server = make_worker(["It is 42."])
    worker.tokenizer.chat_template = "{% if shout is defined %}{{ bos_token }}{{ shout }}{% endif %}" + template
    worker.config.data.apply_chat_template_kwargs = {"shout": "LOUD"}
    assert isinstance(await alone(worker), AgentLoopOutput)
    assert tokenizer.decode(server.asked[0][1]).startswith("<|im_start|>LOUD")
    settings = {"chat": {"options": '{"shout": "QUIET"}'}}
    worker, _ = make_worker(["never"], **settings)
    worker.config.data.apply_chat_template_kwargs = {"shout": "LOUD"}
    with pytest.raises(Exception, match=r"chat\.options and data\.apply_chat_template_kwargs are both set"):
        await alone(worker)


async def test_template_that_rewrites_is_refused_or_kept(make_worker: MakeWorker) -> None:
    rewriting = (FOLDER / "Qwen-QwQ-32B.jinja").read_text(encoding="utf-8")
    worker, _ = make_worker(["never"])
    worker.tokenizer.chat_template = rewriting
    with pytest.raises(Exception, match="rewrites=keep"):
        await alone(worker)
    worker, server = make_worker(["It is 42."], chat={"rewrites": "keep"})
    worker.tokenizer.chat_template = rewriting
    assert isinstance(await alone(worker), AgentLoopOutput)
    assert len(server.asked) == 1


async def test_fairboxs_reward_scores_and_leaves_out_what_it_can_not_score(make_worker: MakeWorker) -> None:
    truth = {"reward_model": {"ground_truth": "42"}}
    worker, _ = make_worker(["#### 42"], reward="gsm8k")
    output = await alone(worker, **truth)
    assert isinstance(output, AgentLoopOutput)
    assert (output.reward_score, output.extra_fields["fairbox_reward_parts"]["gsm8k/correct"]) == (1.0, 1.0)
    worker, _ = make_worker(["#### 42"], reward="tests.interop.test_scores:untestable")
    output = await alone(worker, **truth)
    assert isinstance(output, AgentLoopOutput)
    assert (set(output.response_mask), output.reward_score) == ({0}, 0.0)
    assert (output.extra_fields["fairbox_masked"], output.extra_fields["fairbox_cause"]) == (True, "TASK")
    assert "it has no tests" in output.extra_fields["fairbox_infra"]
    worker, _ = make_worker(["#### 42"], reward="tests.interop.test_scores:untestable", use_v1=True)
    with pytest.raises(TrajectoryLeftOut, match="it has no tests"):
        await alone(worker, **truth)
    worker, server = make_worker(["#### 42"], reward="gsm8k")
    output = await alone(worker)
    assert isinstance(output, AgentLoopOutput)
    assert ("ground_truth" in output.extra_fields["fairbox_infra"], server.asked) == (True, [])
    worker, _ = make_worker(["never"], reward="gsm9k")
    with pytest.raises(Exception, match="reward is 'gsm9k'"):
        await alone(worker)


async def test_unknown_settings_fail_before_anything_is_played(make_worker: MakeWorker) -> None:
    worker, server = make_worker(["never"], infra_retry=3)
    with pytest.raises(Exception, match=r"infra_retry .* is not a setting; did you mean infra_retries"):
        await worker.generate_sequences(rows(1))
    assert server.asked == []
