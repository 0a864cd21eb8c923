"""A model split with FSDP2 over NCCL learns what one process does: two ranks, on one GPU if there is but one.

The ranks are the actors of a sharded learner, in processes that this test starts; what Ray adds is tested on the CPU.
NCCL refuses two ranks on a GPU of one host, so that each is told a host of its own, and they speak over loopback.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fairbox.net.ports import free_port
from rollout.batch import RolloutBatch
from tests.rollout.training.test_sharded import plan

torch = pytest.importorskip("torch", reason="torch is not installed (extra `engine`)")

from transformers import LlamaConfig, LlamaForCausalLM  # noqa: E402 - needs torch

from rollout.engines.local.decoder import load_model  # noqa: E402
from rollout.training import AdvantageSettings, PolicySettings  # noqa: E402
from rollout.training.fsdp.worker import LearnerPlan, Shard  # noqa: E402
from rollout.training.learner.checkpoints import read_state  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(400)]

SHARDS = 2
WITHIN_S = 200.0
CLOSE = 1e-4
LAYERS = 8

_shard = Shard()
"""This process's, where it is a rank."""


def _begin(rank: int, gpus: int) -> None:
    """Prepares a process before it uses CUDA."""
    os.environ["CUDA_VISIBLE_DEVICES"] = str(rank % gpus)
    if gpus < SHARDS:
        os.environ |= {"NCCL_HOSTID": f"rank-{rank}", "NCCL_SOCKET_IFNAME": "lo", "GLOO_SOCKET_IFNAME": "lo"}


def _call(method: str, *words: Any, **named: Any) -> Any:
    return getattr(_shard, method)(*words, **named)


def _most_memory() -> int:
    return int(torch.cuda.max_memory_allocated())


class Ranks:
    """The processes."""

    def __init__(self, processes: list[ProcessPoolExecutor]) -> None:
        self._processes = processes

    def call(self, method: str, *words: Any) -> Any:
        """The first rank's answer, once all have answered."""
        return self._results([each.submit(_call, method, *words) for each in self._processes])[0]

    def join(self, plan: LearnerPlan) -> int:
        meet = f"127.0.0.1:{free_port()}"
        named = {"count": SHARDS, "meet": meet, "timeout_s": WITHIN_S}
        joined = self._results(
            [each.submit(_call, "join", plan, rank=rank, **named) for rank, each in enumerate(self._processes)]
        )
        assert isinstance(joined[0], int), joined[0]
        return joined[0]

    def most_memory(self) -> list[int]:
        """Most bytes that each had on its device."""
        return self._results([each.submit(_most_memory) for each in self._processes])

    def _results(self, futures: list[Any]) -> list[Any]:
        return [each.result(WITHIN_S) for each in futures]


@contextmanager
def ranks() -> Iterator[Ranks]:
    with ExitStack() as stack:
        spawn, gpus = multiprocessing.get_context("spawn"), torch.cuda.device_count()
        made = [
            ProcessPoolExecutor(1, mp_context=spawn, initializer=_begin, initargs=(rank, gpus))
            for rank in range(SHARDS)
        ]
        for each in made:
            stack.callback(each.shutdown, wait=True, cancel_futures=True)
        yield Ranks(made)


@pytest.mark.parametrize(
    ("policy", "advantage"),
    [
        (PolicySettings(device="cuda", micro_tokens=20), AdvantageSettings("reinforce++")),
        (PolicySettings(device="cuda", micro_tokens=20, recompute=True), AdvantageSettings("gae")),
    ],
    ids=["all weights", "recomputed, with a value head"],
)
def test_two_ranks_learn_what_one_process_does(
    mini_dir: Path, sampled_batch: RolloutBatch, tmp_path: Path, policy: PolicySettings, advantage: AdvantageSettings
) -> None:
    both = plan(mini_dir, policy, advantage)
    alone = both.load()
    with ranks() as split:
        assert split.join(both) == 0
        for step in range(1, 4):
            mine, (theirs, logprobs) = alone.step(sampled_batch), split.call("step", sampled_batch)
            torch.testing.assert_close(logprobs, alone.logprobs, rtol=0, atol=CLOSE)
            assert theirs == pytest.approx(mine, rel=1e-3, abs=CLOSE), step
        assert split.call("write_state", tmp_path / "state") is None
        assert split.call("write_model", tmp_path / "model", False) is None
    state = read_state(tmp_path / "state", mmap=False)
    for name, value in alone.policy.trained_state().items():
        torch.testing.assert_close(state["parameters"][name], value, rtol=0, atol=CLOSE)
    written = load_model(tmp_path / "model").state_dict()
    for name, value in alone.policy.state().items():
        torch.testing.assert_close(written[name], value.cpu(), rtol=0, atol=CLOSE)
    again = plan(mini_dir, policy, advantage, state=tmp_path / "state")
    with ranks() as split:
        assert split.join(again) == 3
        assert split.call("step", sampled_batch)[0] == pytest.approx(alone.step(sampled_batch), rel=1e-3, abs=CLOSE)


def test_bfloat16_is_gathered_and_computed_in_it(mini_dir: Path, sampled_batch: RolloutBatch) -> None:
    half = plan(mini_dir, PolicySettings(device="cuda", dtype="bfloat16"))
    with ranks() as split:
        split.join(half)
        found, _ = split.call("step", sampled_batch)
    wanted = half.load().step(sampled_batch)
    for name in ("policy_loss", "grad_norm", "entropy"):  # three digits of bfloat16
        assert found[name] == pytest.approx(wanted[name], rel=0.05)


def test_no_rank_has_the_whole_model_on_its_device(tmp_path: Path) -> None:
    whole = write_model(tmp_path / "model", layers=LAYERS)
    with ranks() as split:
        split.join(replace(plan(tmp_path / "model", PolicySettings(device="cuda")), reference=False))
        most = split.most_memory()
    # Half of it, and a layer that is whole while it is filled, beside its half.
    assert max(most) < whole / SHARDS + 2 * whole / LAYERS, (most, whole)


def write_model(folder: Path, *, layers: int) -> int:
    """Writes a model that is layers and little else; returns the bytes of its weights."""
    config = LlamaConfig(
        vocab_size=97, hidden_size=512, intermediate_size=1536, num_hidden_layers=layers, num_attention_heads=8
    )
    model = LlamaForCausalLM(config).float()
    model.save_pretrained(folder)
    return 4 * int(sum(value.numel() for value in model.parameters()))
