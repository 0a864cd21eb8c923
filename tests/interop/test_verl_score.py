"""`compute_score` as verl itself loads and calls it."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import yaml

from rollout.rewards import NotScored
from rollout.tokens import HubTokenizer
from tests.pages import examples

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    verl = pytest.importorskip("verl", reason="verl is not installed: make test-interop")
    import numpy as np
    import torch
    from omegaconf import OmegaConf
    from verl.protocol import DataProto
    from verl.trainer.ppo.reward import get_custom_reward_fn, load_reward_manager

pytestmark = [pytest.mark.verl, pytest.mark.asyncio(loop_scope="module"), pytest.mark.filterwarnings("ignore")]


def config(reward: str) -> Any:
    loaded = OmegaConf.load(Path(verl.__file__).parent / "trainer/config/_generated_ppo_trainer.yaml")
    (page,) = (block for block in examples("how-to/verl.md", "yaml") if "custom_reward_function" in block)
    ours = yaml.safe_load(page)
    ours["reward"]["custom_reward_function"]["reward_kwargs"]["reward"] = reward
    return OmegaConf.merge(loaded, ours)


def row(tokenizer: HubTokenizer, text: str) -> DataProto:
    ids = torch.tensor([tokenizer.encode(text)])
    fields = {"data_source": "openai/gsm8k", "reward_model": {"style": "rule", "ground_truth": "42"}, "extra_info": {}}
    others = {}
    for name, value in fields.items():
        others[name] = np.empty(1, dtype=object)
        others[name][0] = value
    return DataProto.from_dict(tensors={"responses": ids, "attention_mask": torch.ones_like(ids)}, non_tensors=others)


class Decoder:
    """The part of a tokenizer of transformers that verl's managers use."""

    def __init__(self, tokenizer: HubTokenizer) -> None:
        self._tokenizer = tokenizer

    def decode(self, ids: Any, skip_special_tokens: bool = True) -> str:
        return self._tokenizer.decode(ids.tolist())


async def test_verls_own_manager_scores_with_a_file(tokenizer: HubTokenizer, tmp_path: Path) -> None:
    path = tmp_path / "rewards.yaml"
    path.write_text("reward: [{fn: gsm8k, weight: 0.5}]")
    manager = load_reward_manager(config(str(path)), Decoder(tokenizer))
    right = await manager.run_single(row(tokenizer, "It is 42.\n#### 42"))
    assert right["reward_score"] == 0.5
    assert right["reward_extra_info"] == {"gsm8k": 1.0, "gsm8k/correct": 1.0, "gsm8k/answered": 1.0, "score": 0.5}
    assert (await manager.run_single(row(tokenizer, "#### 41")))["reward_score"] == 0.0


async def test_what_can_not_be_scored_ends_verls_step_with_a_sentence(tokenizer: HubTokenizer) -> None:
    manager = load_reward_manager(config("tests.interop.test_scores:untestable"), Decoder(tokenizer))
    with pytest.raises(NotScored, match="untestable: it has no tests"):
        await manager.run_single(row(tokenizer, "#### 42"))


def test_verl_finds_the_function_by_the_pages_path() -> None:
    assert get_custom_reward_fn(config("gsm8k")) is not None
