"""Rewards of a trajectory's length. Pure."""

from __future__ import annotations

from executor_service import Cause
from rollout.rewards.base import NotScored, Sample
from rollout.rewards.registry import reward


@reward("overlong")
def overlong(sample: Sample, *, most: int = 1024, buffer: int = 256) -> float:
    """A soft punishment for length (DAPO, arXiv:2503.14476, equation 13): 0 up to `most` - `buffer` ids after the
    prompt, sampled and tool ids together, from there on falling to -1 at `most`, and -1 beyond."""
    if sample.response_tokens is None:
        raise NotScored(Cause.TASK, "overlong needs the length in tokens, and only the text is known")
    beyond = sample.response_tokens - (most - buffer)
    return -min(max(beyond / max(buffer, 1), 0.0), 1.0)
