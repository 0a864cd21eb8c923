"""The trained model: the engine's logprobs, a plain forward pass's gradients, adapters, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fairbox.errors import FairboxError
from rollout.batch import RolloutBatch
from tests.rollout.training.conftest import TEMPERATURE

torch = pytest.importorskip("torch", reason="torch is not installed (extra `engine`)")

from rollout.training.learner import token_model  # noqa: E402 - needs torch
from rollout.training.learner.policy import Policy, PolicySettings, TokenValues, load_token_model  # noqa: E402

ROWS = [2, 0, 1]


@pytest.fixture(scope="module")
def mask(sampled_batch: RolloutBatch) -> Any:
    return sampled_batch.response_mask.bool()


def compute(policy: Policy, batch: RolloutBatch, mask: Any, **options: Any) -> TokenValues:
    return policy.compute(batch, ROWS, mask, temperature=TEMPERATURE, **options)


def plain(policy: Policy, batch: RolloutBatch, row: int) -> tuple[Any, Any]:
    """(logprobs, entropies) of every response id of a row: whole logits, no chunk, no padding."""
    there = batch.attention_mask[row].bool()
    ids = batch.input_ids[row][there]
    width = int(batch.attention_mask[row, batch.prompts.shape[1] :].sum())
    logits = policy.model(input_ids=ids[None]).logits[0, -width - 1 : -1].float() / TEMPERATURE
    every = torch.log_softmax(logits, dim=-1)
    return every.gather(1, ids[-width:, None])[:, 0], -(every.exp() * every).sum(-1)


def test_logprobs_are_the_engines(
    mini_dir: Path, sampled_batch: RolloutBatch, mask: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_model, "CHUNK_TOKENS", 4)
    policy = Policy.load(mini_dir, PolicySettings())
    with torch.no_grad():
        found = compute(policy, sampled_batch, mask)
    wanted = sampled_batch.rollout_log_probs[ROWS]
    assert mask[ROWS].sum() == 24
    torch.testing.assert_close(found.logprobs, wanted, rtol=0, atol=1e-4)
    for n, row in enumerate(ROWS):
        logprobs, entropy = plain(policy, sampled_batch, row)
        at = mask[row][: len(logprobs)]
        torch.testing.assert_close(found.logprobs[n, : len(at)][at], logprobs[at].detach(), rtol=0, atol=1e-4)
        torch.testing.assert_close(found.entropy[n, : len(at)][at], entropy[at].detach(), rtol=0, atol=1e-4)


def largest(values: Any) -> float:
    return float(values.detach().abs().max())


def gradients(policy: Policy, loss: Any) -> dict[str, Any]:
    policy.model.zero_grad()
    loss.backward()
    return {name: value.grad.clone() for name, value in policy.named_parameters().items() if value.grad is not None}


@pytest.mark.parametrize(
    "settings",
    [
        PolicySettings(),
        PolicySettings(recompute=True),
    ],
    ids=["padded", "recomputed"],
)
def test_gradients_are_those_of_a_plain_forward_pass(
    mini_dir: Path, sampled_batch: RolloutBatch, mask: Any, settings: PolicySettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_model, "CHUNK_TOKENS", 5)
    policy = Policy.load(mini_dir, settings)
    weights = torch.linspace(-1, 1, mask[ROWS].numel()).view(mask[ROWS].shape)
    found = compute(policy, sampled_batch, mask, entropy_gradient=True)
    ours = gradients(policy, (weights * (found.logprobs + 0.1 * found.entropy)).sum())
    loss: Any = 0.0
    for n, row in enumerate(ROWS):
        logprobs, entropy = plain(policy, sampled_batch, row)
        at = mask[row][: len(logprobs)]
        loss = loss + (weights[n, : len(at)] * (logprobs + 0.1 * entropy))[at].sum()
    theirs = gradients(policy, loss)
    assert ours.keys() == theirs.keys()
    for name, wanted in theirs.items():
        torch.testing.assert_close(ours[name], wanted, rtol=1e-3, atol=1e-4 * largest(wanted))


def test_entropy_is_a_figure_unless_its_gradient_is_wanted(
    mini_dir: Path, sampled_batch: RolloutBatch, mask: Any
) -> None:
    policy = Policy.load(mini_dir, PolicySettings())
    assert not compute(policy, sampled_batch, mask).entropy.requires_grad
    assert compute(policy, sampled_batch, mask, entropy_gradient=True).entropy.requires_grad


def test_bfloat16_computes_near_and_keeps_its_weights(mini_dir: Path, sampled_batch: RolloutBatch, mask: Any) -> None:
    policy = Policy.load(mini_dir, PolicySettings(dtype="bfloat16"))
    found = compute(policy, sampled_batch, mask)
    assert {value.dtype for value in policy.named_parameters().values()} == {torch.float32}
    assert found.logprobs.dtype == torch.float32
    difference = (found.logprobs - sampled_batch.rollout_log_probs[ROWS]).abs()
    assert 1e-4 < largest(difference) < 0.5


def test_a_head_in_float32_comes_nearer_to_the_engine(model_dir: Path) -> None:
    """The model is a real one, because its logits are large, and bfloat16 has three digits."""
    ids = torch.tensor([*range(1000, 1200)])

    def logprobs(dtype: str, head_dtype: str) -> Any:
        settings = PolicySettings(dtype=dtype, head_dtype=head_dtype)
        model = load_token_model(model_dir, settings, adapters=False, value_head=False, seed=0)
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=dtype == "bfloat16"):
            before = torch.arange(len(ids) - 1)
            return model(ids[None], before, ids[1:], temperature=1.0, entropy_gradient=False)[0]

    exact = logprobs("float32", "float32")
    near, far = ((logprobs("bfloat16", head) - exact).abs().mean() for head in ("float32", "bfloat16"))
    assert near < 0.8 * far


def test_the_value_head_begins_at_zero_and_learns(mini_dir: Path, sampled_batch: RolloutBatch, mask: Any) -> None:
    policy = Policy.load(mini_dir, PolicySettings(), value_head=True)
    found = compute(policy, sampled_batch, mask)
    assert found.values is not None
    assert not found.values.any()
    assert policy.value_head is not None
    (gradient,) = torch.autograd.grad(found.values.sum(), policy.value_head.bias)
    assert gradient.item() == mask[ROWS].sum()
    assert {"value_head.weight", "value_head.bias"} <= policy.named_parameters().keys()
    assert not any("value_head" in name for name in policy.state())


class TestAdapters:
    """LoRA."""

    @pytest.fixture
    def policy(self, mini_dir: Path) -> Policy:
        pytest.importorskip("peft", reason="peft is not installed (extra `train`)")
        return Policy.load(mini_dir, PolicySettings(lora_rank=4), reference=True)

    def test_only_adapters_are_trained_and_they_begin_without_effect(
        self, policy: Policy, sampled_batch: RolloutBatch, mask: Any
    ) -> None:
        assert all("lora_" in name for name in policy.named_parameters())
        found = compute(policy, sampled_batch, mask)
        torch.testing.assert_close(found.logprobs, sampled_batch.rollout_log_probs[ROWS], rtol=0, atol=1e-4)

    def test_an_engine_gets_a_plain_model_with_what_was_learned(
        self, policy: Policy, mini_dir: Path, sampled_batch: RolloutBatch, mask: Any
    ) -> None:
        before = compute(policy, sampled_batch, mask).logprobs
        with torch.no_grad():
            for value in policy.named_parameters().values():
                value.add_(torch.randn(value.shape, generator=torch.Generator().manual_seed(1)) * 0.05)
        base = {name: value.clone() for name, value in policy.model.state_dict().items() if "lora_" not in name}
        after = compute(policy, sampled_batch, mask).logprobs
        assert largest(after - before) > 1e-2
        other = Policy.load(mini_dir, PolicySettings())
        other.model.load_state_dict(policy.state())
        torch.testing.assert_close(compute(other, sampled_batch, mask).logprobs, after, rtol=0, atol=1e-4)
        assert all(torch.equal(value, policy.model.state_dict()[name]) for name, value in base.items())
        with policy.as_reference():
            torch.testing.assert_close(compute(policy, sampled_batch, mask).logprobs, before)
        torch.testing.assert_close(compute(policy, sampled_batch, mask).logprobs, after)

    def test_layers_that_are_not_there_are_named(self, mini_dir: Path) -> None:
        pytest.importorskip("peft", reason="peft is not installed (extra `train`)")
        with pytest.raises(FairboxError, match=r"policy.lora_targets is \['nothing'\]"):
            Policy.load(mini_dir, PolicySettings(lora_rank=4, lora_targets=["nothing"]))


def test_full_weights_keep_a_second_model_as_their_reference(
    mini_dir: Path, sampled_batch: RolloutBatch, mask: Any
) -> None:
    policy = Policy.load(mini_dir, PolicySettings(), reference=True)
    before = compute(policy, sampled_batch, mask).logprobs
    state = {name: value + 0.01 for name, value in policy.trained_state().items()}
    policy.load_trained_state(state)
    assert largest(compute(policy, sampled_batch, mask).logprobs - before) > 1e-2
    with policy.as_reference():
        torch.testing.assert_close(compute(policy, sampled_batch, mask).logprobs, before)
    with pytest.raises(FairboxError, match="other names or shapes"):
        policy.load_trained_state(dict(list(state.items())[1:]))


def test_a_model_that_changes_its_logits_behind_the_head_is_refused(tmp_path: Path) -> None:
    from transformers import GraniteConfig, GraniteForCausalLM

    config = GraniteConfig(
        vocab_size=32,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        logits_scaling=4.0,
    )
    GraniteForCausalLM(config).save_pretrained(tmp_path)
    with pytest.raises(FairboxError, match="scales or caps its logits behind the head"):
        Policy.load(tmp_path, PolicySettings())
