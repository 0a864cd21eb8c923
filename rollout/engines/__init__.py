"""Engines sample turns: token ids in; ids, logprobs, finish reason and weight versions out.

The transformers engine is `rollout.engines.transformers.TransformersEngine`; it is not imported here, because it costs
torch.
"""

from rollout.engines.base import (
    Engine,
    EngineStatistics,
    EngineUnavailable,
    FinishReason,
    GenerationRequest,
    GenerationResult,
    SamplingParams,
    VersionSpan,
)
from rollout.engines.model_store import find_model

__all__ = [
    "Engine",
    "EngineStatistics",
    "EngineUnavailable",
    "FinishReason",
    "GenerationRequest",
    "GenerationResult",
    "SamplingParams",
    "VersionSpan",
    "find_model",
]
