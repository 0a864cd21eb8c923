"""Engines sample turns: token ids in; ids, logprobs, finish reason and weight versions out.

Not imported here, because they cost torch, aiohttp or Ray: `rollout.engines.local.engine.TransformersEngine`,
`rollout.engines.sglang.engine.SglangEngine`, `rollout.engines.sglang.launch` and `rollout.ray.servers`.
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
from rollout.engines.replicas.replicated import ReplicatedEngine
from rollout.engines.weights import (
    DiskWeights,
    Interrupt,
    Replica,
    StateWeights,
    WeightedEngine,
    WeightSource,
)

__all__ = [
    "DiskWeights",
    "Engine",
    "EngineStatistics",
    "EngineUnavailable",
    "FinishReason",
    "GenerationRequest",
    "GenerationResult",
    "Interrupt",
    "Replica",
    "ReplicatedEngine",
    "SamplingParams",
    "StateWeights",
    "VersionSpan",
    "WeightSource",
    "WeightedEngine",
    "find_model",
]
