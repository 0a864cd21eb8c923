"""Asks the engine for the next turn of a trajectory.

Invariants: the engine gets exactly the builder's ids; each turn has a seed of its own; a turn that the engine did not
do in time is its failure.
"""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import TYPE_CHECKING

from fairbox.telemetry import tracing
from rollout.engines.base import EngineUnavailable, FinishReason, GenerationRequest, derived_seed
from rollout.journal import Sampled
from rollout.loop.state import Generate
from rollout.loop.trajectory_state import TrajectoryState

if TYPE_CHECKING:
    from rollout.loop.agent_loop import AgentLoop


async def sample(loop: AgentLoop, state: TrajectoryState, decision: Generate) -> Sampled:
    """The turn, as a journal has it. Raises EngineUnavailable."""
    params = replace(
        loop.sampling,
        max_new_tokens=decision.max_new_tokens,
        stop_token_ids=loop.chat.stop_token_ids,
        seed=derived_seed(state.seed, "turn", state.machine.usage.turns),
    )
    request = GenerationRequest(
        request_id=uuid.uuid4().hex,
        trajectory_id=state.trajectory_id,
        input_ids=state.builder.ids,
        params=params,
        queue_timeout_s=loop.queue_timeout_s,
        time_limit_s=loop.turn_timeout_s,
    )
    began_s = loop.clock.now() - state.began_s
    with tracing.span("rollout.generate", request_id=request.request_id, prompt_tokens=len(request.input_ids)) as span:
        result = await loop.engine.generate(request)
        facts = {"tokens": len(result.ids), "finish": result.finish.value}
        span.set_attributes(tracing.named({**facts, "queue_s": result.queue_s, "run_s": result.run_s}))
    if result.finish is FinishReason.ABORT:
        raise EngineUnavailable(f"a turn was not done within {loop.turn_timeout_s:g} s")
    return Sampled(began_s, loop.clock.now() - state.began_s, result)
