"""Compares a dump's logprobs with an independent forward pass of the model.

It shares no code with the engine: transformers' own model, its own masks and positions, no cache, no batch; each
trajectory is fed whole, as a trainer would. Costs torch, so import it only where it is used.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM
from transformers.utils import logging

from executor_service import Cause
from rollout.dump import parts_of, read_dump


@dataclass(frozen=True, slots=True)
class DumpCheck:
    """Result of checking a dump."""

    trajectories: int
    sampled_tokens: int
    max_logprob_difference: float
    """Largest absolute difference over all sampled tokens, natural logarithm."""
    worst: str
    """Place of that difference; empty if nothing was sampled."""
    problems: tuple[str, ...]
    """Contradictions within the records: masks, segments, logprobs outside the mask."""


def check_dump(path: Path, model_dir: Path) -> DumpCheck:
    """Checks every trajectory of a dump that the model in `model_dir` sampled. Raises DumpError for a broken file."""
    logging.disable_progress_bar()
    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32, local_files_only=True).eval()
    trajectories, sampled, worst, where = 0, 0, 0.0, ""
    problems: list[str] = []
    for number, record in enumerate(read_dump(path), 1):
        trajectories += 1
        problems += [f"{path}:{number}: {problem}" for problem in contradictions(record)]
        for part in parts_of(record):
            expected = _teacher_forced(model, part, record["sampling"]["temperature"])
            dumped = [p for p, m in zip(part["logprobs"], part["response_mask"], strict=True) if m]
            sampled += len(dumped)
            for index, (a, b) in enumerate(zip(expected, dumped, strict=True)):
                if abs(a - b) >= worst:
                    worst, where = abs(a - b), f"{path}:{number}: sampled token {index} has {b:.6f}, the model {a:.6f}"
    return DumpCheck(trajectories, sampled, worst, where, tuple(problems))


@torch.inference_mode()
def _teacher_forced(model: Any, part: Mapping[str, Any], temperature: float) -> list[float]:
    """Logprobs of the ids under the mask, of log_softmax(logits / temperature), float32."""
    prompt, response = part["prompt_ids"], part["response_ids"]
    at = [len(prompt) + index for index, bit in enumerate(part["response_mask"]) if bit]
    if not at:
        return []
    ids = torch.tensor([prompt + response])
    logits = model(input_ids=ids, use_cache=False, logits_to_keep=torch.tensor(at) - 1).logits[0].float()
    logprobs = torch.log_softmax(logits / (temperature or 1.0), dim=-1)
    chosen: list[float] = logprobs.gather(1, ids[0, at][:, None])[:, 0].tolist()
    return chosen


def contradictions(record: dict[str, Any]) -> list[str]:
    """Sentences about fields of a record that contradict each other: masks, segments, logprobs, cause and score."""
    problems = []
    for part in parts_of(record):
        mask = [int(each["kind"] == "sampled") for each in part["segments"][1:] for _ in range(each["length"])]
        if mask != part["response_mask"]:
            problems.append("response_mask is not 1 exactly on sampled segments")
        if any(p != 0.0 for p, m in zip(part["logprobs"], part["response_mask"], strict=True) if not m):
            problems.append("a token that was not sampled has a logprob")
    allowed = (Cause.INFRA, Cause.TASK) if record["masked"] else (Cause.POLICY, Cause.TASK)
    if record["cause"] not in allowed:
        problems.append(f"masked is {record['masked']}, but the cause is {record['cause']}")
    if record["masked"] and record["score"] is not None:
        problems.append("it is masked and has a score")
    return problems
