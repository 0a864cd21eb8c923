"""Engines that are vLLM servers. `VllmEngine` is imported when somebody asks for it, because it costs aiohttp."""

from typing import TYPE_CHECKING, Any

from rollout.engines.vllm.api import LogprobsMode

if TYPE_CHECKING:
    from rollout.engines.vllm.engine import VllmEngine

__all__ = ["LogprobsMode", "VllmEngine"]


def __getattr__(name: str) -> Any:
    if name != "VllmEngine":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from rollout.engines.vllm.engine import VllmEngine

    return VllmEngine
