"""Memory and time of training steps: one process, and two that share a model, each in processes of their own.

`held` are the tensors that stay: weights, gradients and moments, of shards the first one's. `peak` is resident memory,
what Python takes left out, at most: the kernel's high-water mark is set back after loading. It has activations and
gathered layers in it, and what the allocator of a CPU keeps for itself.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.rows import Row

__all__ = ["rows"]

ROWS, PROMPT, RESPONSE = 8, 32, 96
"""Of a batch; 1,024 tokens, of which three in four are trained on."""
VOCABULARY, HIDDEN, LAYERS = 16_384, 768, 6
"""Of a Llama of 55 million random weights: small enough for a laptop, large beside what Python itself takes."""
STEPS = 1
"""The most memory is taken at the end of the first: gradients and moments are there."""
SETTINGS = {
    "all weights": {"shards": 1},
    "all weights, 2 shards": {"shards": 2},
    "adapters of rank 16": {"shards": 1, "lora_rank": 16},
    "adapters of rank 16, 2 shards": {"shards": 2, "lora_rank": 16},
}


async def rows() -> list[Row]:
    found = []
    for name, settings in SETTINGS.items():
        figures = await asyncio.to_thread(_measured, dict(settings))
        print(f"{name}: {figures}", file=sys.stderr, flush=True)
        for figure, unit in (("held", "GB"), ("peak", "GB"), ("step", "s")):
            found.append(Row(f"{name}: {figure}", figures[figure], unit))
        found.append(Row(f"{name}: tokens per second", ROWS * (PROMPT + RESPONSE) / figures["step"], "/s"))
    return found


def _measured(settings: dict[str, Any]) -> dict[str, float]:
    count = settings.pop("shards")
    with tempfile.TemporaryDirectory() as folder:
        _write_model(Path(folder) / "model")
        words = [json.dumps({**settings, "count": count, "folder": folder})]
        processes = [
            subprocess.Popen([sys.executable, "-m", "benchmarks.learner_memory", *words, str(rank)])
            for rank in range(count)
        ]
        for process in processes:
            if process.wait(900) != 0:
                raise SystemExit("a process of the measurement failed")
        figures: dict[str, float] = json.loads((Path(folder) / "0.json").read_text(encoding="utf-8"))
        return figures


def _main(settings: dict[str, Any], rank: int) -> None:
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    from rollout.training import AdvantageSettings, ObjectiveSettings, Policy, PolicySettings
    from rollout.training.learner import Learner, LearnerSettings
    from rollout.training.loading import Split
    from rollout.training.peers import ALONE, Peers, Ranks
    from rollout.training.sharding import split
    from rollout.training.update import UpdateSettings

    count, folder = settings.pop("count"), Path(settings.pop("folder"))
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // count))
    chosen = PolicySettings(micro_tokens=512, **settings)
    peers: Peers = ALONE
    how: Split | None = None
    began_with = _status("VmRSS")
    if count > 1:
        dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=count)
        peers, mesh = Ranks(), init_device_mesh("cpu", (count,))
        how = partial(split, mesh=mesh, device="cpu", dtype=chosen.dtype)
    policy = Policy.load(folder / "model", chosen, peers=peers, split=how)
    update = UpdateSettings(lr=1e-5)
    learner = Learner(
        policy, LearnerSettings(AdvantageSettings(), ObjectiveSettings(), update, 1.0, RESPONSE, 10, 0), peers=peers
    )
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    batch, times = _batch(), []
    for _ in range(STEPS):
        began = time.monotonic()
        learner.step(batch)
        times.append(time.monotonic() - began)
    figures = {"held": _held(learner) / 1e9, "peak": _status("VmHWM") - began_with, "step": times[-1]}
    (folder / f"{rank}.json").write_text(json.dumps(figures), encoding="utf-8")
    if count > 1:
        dist.barrier()
        dist.destroy_process_group()


def _held(learner: Any) -> int:
    """Bytes on this process."""
    optimizer = learner._optimizer.state_dict()
    tensors = [*learner.policy.model.parameters(), *(each.grad for each in learner.policy.named_parameters().values())]
    tensors += [value for each in optimizer["state"].values() for value in each.values()]
    return sum(getattr(each, "to_local", lambda each=each: each)().nbytes for each in tensors if each is not None)


def _write_model(folder: Path) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=HIDDEN,
        intermediate_size=2048,
        num_hidden_layers=LAYERS,
        num_attention_heads=12,
        num_key_value_heads=12,
        tie_word_embeddings=True,
    )
    LlamaForCausalLM(config).float().save_pretrained(folder)


def _batch() -> Any:
    """Ids drawn at random, all of a response sampled, and half of each group's rewards 1."""
    import torch

    from executor_service import Cause
    from rollout.batch import RolloutBatch
    from rollout.loop import StopReason

    width = PROMPT + RESPONSE
    ids = torch.randint(100, VOCABULARY, (ROWS, width), generator=torch.Generator().manual_seed(0))
    yes, number = torch.ones(ROWS, dtype=torch.bool), torch.arange(ROWS)
    rewards = (number % 2).float()
    at_the_end = torch.zeros(ROWS, RESPONSE)
    at_the_end[:, -1] = rewards
    return RolloutBatch(
        prompts=ids[:, :PROMPT],
        responses=ids[:, PROMPT:],
        input_ids=ids,
        attention_mask=torch.ones(ROWS, width, dtype=torch.int64),
        position_ids=torch.arange(width).expand(ROWS, width),
        response_mask=torch.ones(ROWS, RESPONSE, dtype=torch.int64),
        rollout_log_probs=torch.full((ROWS, RESPONSE), -10.0),
        weight_versions=torch.zeros(ROWS, RESPONSE, dtype=torch.int64),
        rewards=rewards,
        token_rewards=at_the_end,
        scored=yes,
        masked=~yes,
        is_last_step=yes,
        groups=number // 4,
        turns=torch.ones(ROWS, dtype=torch.int64),
        versions=("0",),
        uids=tuple(str(n // 4) for n in range(ROWS)),
        trajectory_ids=tuple(str(n) for n in range(ROWS)),
        causes=(Cause.POLICY,) * ROWS,
        stop_reasons=(StopReason.ANSWERED,) * ROWS,
    )


def _status(name: str) -> float:
    """In GB."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024 / 1e9
    raise AssertionError(name)


if __name__ == "__main__":
    _main(json.loads(sys.argv[1]), int(sys.argv[2]))
