"""sglang on the GPUs of this machine: what it samples, what an update costs, what a killed server loses.

`python -m benchmarks.sglang_gpu --model DIR --python PYTHON [--tensor-parallel N] [--replicas N] [--ray] [-- ARGS...]`

Starts the servers, and then: samples turns at growing concurrency (tokens per second); replaces the weights by the
same ones while turns run (seconds, and every token's version); compares logprobs with a forward pass of transformers on
the GPU (`--check`, which needs memory beside the servers); kills one server in the middle of turns, where there are
several (turns lost: must be 0). ARGS go to `sglang.launch_server`. Prints JSON, one object a line.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import statistics
import sys
import time
import uuid
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

from rollout.engine_choice import vocabulary_of
from rollout.engines import DiskWeights, GenerationRequest, GenerationResult, ReplicatedEngine, SamplingParams
from rollout.engines.launch import LocalServers
from rollout.engines.launch_plan import LaunchConfig
from rollout.engines.sglang import SglangEngine

PROMPT = 512
"""Ids of a prompt: random, so that no cache helps."""
SAMPLED = 256
"""Ids of a turn; nothing stops it before."""


def main(argv: Sequence[str]) -> int:
    """0 when nothing was lost and every difference is small."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", type=Path, required=True, help="folder of the model")
    parser.add_argument("--python", required=True, help="interpreter that has sglang")
    parser.add_argument("--tensor-parallel", type=int, default=1)
    parser.add_argument("--replicas", type=int, default=1)
    parser.add_argument("--gpus-per-node", type=int, default=8, help="0: on the CPU")
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 8, 64, 256])
    parser.add_argument("--ray", action="store_true", help="place the servers by Ray (ray.init() finds the cluster)")
    parser.add_argument("--check", action="store_true", help="compare logprobs with transformers")
    parser.add_argument("--tolerance", type=float, default=0.1, help="of a mean logprob difference; bfloat16 is coarse")
    parser.add_argument("args", nargs="*", help="further arguments of the servers, after --")
    chosen = parser.parse_args(argv)
    config = LaunchConfig(
        model=chosen.model.resolve(),
        replicas=chosen.replicas,
        tensor_parallel=chosen.tensor_parallel,
        gpus_per_node=chosen.gpus_per_node,
        python=chosen.python,
        args=tuple(chosen.args),
        restarts=0,
    )
    return asyncio.run(_measure(config, chosen))


async def _measure(config: LaunchConfig, chosen: argparse.Namespace) -> int:
    vocabulary = vocabulary_of(config.model)
    began = time.monotonic()
    async with _servers(config, ray=chosen.ray) as urls:
        _say(name="start", seconds=time.monotonic() - began, servers=list(urls.values()))
        engines = {name: SglangEngine(url, vocab_size=vocabulary) for name, url in urls.items()}
        async with ReplicatedEngine(engines) as engine:
            for concurrency in chosen.concurrency:
                await _throughput(engine, vocabulary, concurrency)
            ok = await _update(engine, vocabulary, config.model)
            ok &= not chosen.check or await _check(engine, vocabulary, config.model, chosen.tolerance)
            if len(urls) > 1 and not chosen.ray:
                ok &= await _kill(engine, vocabulary, next(iter(urls.values())))
    return 0 if ok else 1


def _servers(config: LaunchConfig, *, ray: bool) -> AbstractAsyncContextManager[dict[str, str]]:
    if not ray:
        return LocalServers(config)
    import ray as cluster

    from rollout.engines.ray_launch import RayServers

    cluster.init()
    return RayServers(config)


def _turns(vocabulary: int, count: int) -> list[GenerationRequest]:
    draw = random.Random(count)
    params = SamplingParams(max_new_tokens=SAMPLED)
    names = [uuid.uuid4().hex for _ in range(count)]
    prompts = (tuple(draw.randrange(vocabulary // 2) for _ in range(PROMPT)) for _ in range(count))
    return [GenerationRequest(name, name, ids, params) for name, ids in zip(names, prompts, strict=True)]


async def _throughput(engine: ReplicatedEngine, vocabulary: int, concurrency: int) -> None:
    began = time.monotonic()
    results = await asyncio.gather(*(engine.generate(turn) for turn in _turns(vocabulary, concurrency)))
    wall_s = time.monotonic() - began
    sampled = sum(len(result.ids) for result in results)
    queued = statistics.median(result.queue_s for result in results)
    _say(name="sample", concurrency=concurrency, tokens_per_s=sampled / wall_s, wall_s=wall_s, median_queue_s=queued)


async def _update(engine: ReplicatedEngine, vocabulary: int, model: Path) -> bool:
    tasks = [asyncio.ensure_future(engine.generate(turn)) for turn in _turns(vocabulary, 16)]
    await _running(engine, 16)
    began = time.monotonic()
    await engine.update_weights(DiskWeights(model), version="updated")
    seconds = time.monotonic() - began
    results = await asyncio.gather(*tasks)
    whole = all(_covered(result) for result in results)
    spans = max(len(result.versions) for result in results)
    _say(name="update", seconds=seconds, every_token_has_its_version=whole, most_spans=spans)
    return whole


async def _kill(engine: ReplicatedEngine, vocabulary: int, url: str) -> bool:
    tasks = [asyncio.ensure_future(engine.generate(turn)) for turn in _turns(vocabulary, 16)]
    await _running(engine, 16)
    os.kill(await _pid(url), signal.SIGKILL)
    results = await asyncio.gather(*tasks, return_exceptions=True)
    lost = sum(isinstance(result, BaseException) or not _covered(result) for result in results)
    _say(name="kill", turns=len(results), lost=lost, sampled_again=engine.statistics().extra["retried"])
    return lost == 0


async def _check(engine: ReplicatedEngine, vocabulary: int, model: Path, tolerance: float) -> bool:
    import torch
    from transformers import AutoModelForCausalLM

    turns = _turns(vocabulary, 4)
    results = await asyncio.gather(*(engine.generate(turn) for turn in turns))
    device = "cuda" if torch.cuda.is_available() else "cpu"
    plain: Any = AutoModelForCausalLM.from_pretrained(model, dtype="auto").to(device).eval()
    differences = []
    for turn, result in zip(turns, results, strict=True):
        ids = torch.tensor([[*turn.input_ids, *result.ids]], device=device)
        with torch.inference_mode():
            logits = plain(ids, use_cache=False).logits[0, PROMPT - 1 : -1].float()
        expected = torch.log_softmax(logits, dim=-1).gather(1, torch.tensor(result.ids, device=device)[:, None])[:, 0]
        differences.append((expected.cpu() - torch.tensor(result.logprobs)).abs())
    every = torch.cat(differences)
    _say(name="logprobs", mean_difference=float(every.mean()), max_difference=float(every.max()))
    return float(every.mean()) <= tolerance


def _covered(result: GenerationResult) -> bool:
    indices = [index for span in result.versions for index in range(span.start, span.end)]
    return len(result.ids) == len(result.logprobs) == SAMPLED and indices == list(range(SAMPLED))


async def _running(engine: ReplicatedEngine, turns: int) -> None:
    async with asyncio.timeout(300):
        while engine.statistics().running < turns:
            await asyncio.sleep(0.01)


async def _pid(url: str) -> int:
    """Of the process that listens at `url`, as `ss` tells it."""
    words = ["ss", "-Hltnp", "sport", "=", f":{url.rpartition(':')[2]}"]
    process = await asyncio.create_subprocess_exec(*words, stdout=asyncio.subprocess.PIPE)
    out, _ = await process.communicate()
    return int(out.decode().partition("pid=")[2].partition(",")[0])


def _say(**figures: Any) -> None:
    print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
