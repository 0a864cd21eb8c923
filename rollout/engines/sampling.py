"""Chooses ids from logits, and the logprobs that go with them, in float32."""

from __future__ import annotations

import torch

from rollout.engines.base import SamplingParams

__all__ = ["new_generator", "sample"]


def new_generator(params: SamplingParams) -> torch.Generator:
    """The generator of one request, seeded by `params.seed` or by the operating system."""
    generator = torch.Generator()
    if params.seed is None:
        generator.seed()
    else:
        generator.manual_seed(params.seed)
    return generator


def sample(logits: torch.Tensor, params: SamplingParams, generator: torch.Generator) -> tuple[int, float]:
    """(id, logprob) for the logits of one position: float32 (vocabulary,)."""
    if params.temperature == 0:
        token = int(logits.argmax())
        return token, float(torch.log_softmax(logits, dim=-1)[token])
    logprobs = torch.log_softmax(logits / params.temperature, dim=-1)
    token = int(torch.multinomial(_cut(logprobs, params).exp(), 1, generator=generator))
    return token, float(logprobs[token])


def _cut(logprobs: torch.Tensor, params: SamplingParams) -> torch.Tensor:
    """`logprobs` with -inf outside the `top_k` most probable ids, and then outside the top-p set of what is left."""
    if 0 < params.top_k < logprobs.numel():
        smallest = logprobs.topk(params.top_k).values[-1]
        logprobs = logprobs.masked_fill(logprobs < smallest, float("-inf"))
    if params.top_p < 1:
        ordered, order = logprobs.sort(descending=True)
        probabilities = ordered.softmax(dim=-1)
        before = probabilities.cumsum(dim=-1) - probabilities
        logprobs = logprobs.masked_fill(
            torch.zeros_like(logprobs, dtype=torch.bool).scatter(0, order, before >= params.top_p), float("-inf")
        )
    return logprobs
