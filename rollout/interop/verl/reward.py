"""fairbox's rewards as verl's `custom_reward_function`.

    reward:
      custom_reward_function:
        path: pkg://rollout.interop.verl.reward
        name: compute_score
        reward_kwargs: {reward: rewards.yaml}

verl knows no row without a reward, so what can't be scored raises `NotScored`; it is never a zero. verl's older trainer
ends the step with that sentence; its trainer v1 logs it and leaves out the trajectory, in asynchronous modes the whole
group. To leave such rows out instead, let `rollout.interop.verl.agent_loop.FairboxAgentLoop` score them. It
needs nothing of verl's.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from typing import Any

from executor_service import Cause
from fairbox.errors import ConfigError
from rollout.interop.portal import process_loop
from rollout.interop.scores import RowScorer
from rollout.rewards import NotScored, RewardFault, Sample

_OF_VERL = ("reward_router_address", "reward_model_tokenizer")
"""Arguments that verl also passes if a reward model is configured."""
_OF_OURS = ("reward", "executor", "attempts")


async def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: Any,
    extra_info: Mapping[str, Any] | None = None,
    *,
    reward: str = "gsm8k",
    executor: str = "127.0.0.1:50051",
    attempts: int = 2,
    **kwargs: Any,
) -> dict[str, float]:
    """`score`, and each part of the reward under its name, which verl keeps as further columns.

    `solution_str` is the whole response, tools' answers included, as verl decodes it. `reward` is a registered name, a
    file or `module:function`; `executor` where functions that run programs run them; `attempts` how often it is scored
    in all if a service fails. Raises NotScored with the cause, and ConfigError.
    """
    for name in kwargs:
        if name not in _OF_VERL:
            near = difflib.get_close_matches(name, _OF_OURS, n=1)
            hint = f"did you mean {near[0]}?" if near else f"has: {', '.join(_OF_OURS)}"
            raise ConfigError(f"reward_kwargs.{name} is not an argument of compute_score; {hint}")
    scorer = RowScorer(reward, executor=executor)
    sample = sample_of(data_source, solution_str, ground_truth, extra_info)
    for attempt in range(1, attempts + 1):
        try:
            found = await scorer.score(sample)
            break
        except NotScored as refusal:
            # Again is safe: a score changes nothing outside of itself, and was given to nobody.
            if refusal.cause is not Cause.INFRA or isinstance(refusal, RewardFault) or attempt == attempts:
                raise
    else:
        raise ConfigError(f"reward_kwargs.attempts is {attempts}, must be at least 1")
    return {**found.parts, "score": found.value}


def compute_score_sync(*args: Any, timeout_s: float = 600.0, **kwargs: Any) -> dict[str, float]:
    """The same for managers of rewards that take no coroutine. Raises TimeoutError after `timeout_s`."""
    return process_loop().call(compute_score(*args, **kwargs), timeout=timeout_s)


def sample_of(data_source: str, text: str, ground_truth: Any, extra_info: Mapping[str, Any] | None = None) -> Sample:
    """Makes verl's response a sample. A ground truth that is no text is its JSON; `row` has verl's columns."""
    extra = dict(extra_info or {})
    turns = extra.get("num_turns")
    return Sample(
        text=text,
        ground_truth=ground_truth if isinstance(ground_truth, str) else json.dumps(ground_truth, default=str),
        data_source=str(data_source),
        row={"data_source": data_source, "reward_model": {"ground_truth": ground_truth}, "extra_info": extra},
        turns=max(1, int(turns) // 2) if isinstance(turns, int) else 1,  # verl counts the user's too
    )
