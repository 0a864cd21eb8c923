"""sglang's control calls: abort, pause, continue, and the replacement of weights. One function a call.

They go to each server itself: sglang-router does not pass them on. All may be called again: aborting, pausing and
continuing twice is the same as once, and so is loading the same weights.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from fairbox.errors import FieldError, FieldErrors
from rollout.engines.base import EngineUnavailable
from rollout.engines.sglang_http import SglangHttp
from rollout.engines.weights import DiskWeights, StateWeights, TensorWeights, WeightSource

__all__ = ["Call", "abort", "check_source", "load", "pause", "resume", "weight_version"]


Call = Callable[[SglangHttp], Awaitable[None]]
"""Something to do with each server."""


async def abort(server: SglangHttp, rid: str, *, timeout_s: float) -> None:
    """Ends one request, whose answer then holds what there is. Unknown ids are fine.

    The server takes `rid` as a prefix: ids must be of one length, or `ab-1` ends `ab-10` too.
    """
    await server.post("/abort_request", {"rid": rid}, timeout_s=timeout_s)


async def pause(server: SglangHttp, *, timeout_s: float) -> None:
    """Ends every request of every client at the server, each with what it has; later ones wait there."""
    await server.post("/pause_generation", {"mode": "abort"}, timeout_s=timeout_s)


async def resume(server: SglangHttp, *, timeout_s: float) -> None:
    """Lets requests that wait begin."""
    await server.post("/continue_generation", {}, timeout_s=timeout_s)


async def weight_version(server: SglangHttp, *, timeout_s: float) -> str:
    """Of the weights that the server samples with now. Answered without the scheduler, also while it is paused."""
    answer = await server.get("/model_info", timeout_s=timeout_s)
    if not isinstance(answer, dict) or "weight_version" not in answer:
        raise EngineUnavailable(f"{server.url}: does not tell its weight version")
    return str(answer["weight_version"])


def check_source(source: WeightSource, version: str) -> None:
    """Raises FieldErrors for a source that no server could load."""
    errors = []
    if not version:
        errors.append(FieldError("version", "is empty, must name the weights"))
    if isinstance(source, DiskWeights) and not source.path.is_absolute():
        errors.append(FieldError("source.path", f"is {str(source.path)!r}, must be absolute: servers resolve it"))
    if isinstance(source, StateWeights):
        errors.append(FieldError("source", "is StateWeights, which no server can read"))
    if isinstance(source, TensorWeights) and not source.per_rank:
        errors.append(FieldError("source.per_rank", "is empty, must hold one text per tensor-parallel rank"))
    if errors:
        raise FieldErrors(errors)


async def load(server: SglangHttp, source: WeightSource, version: str, *, timeout_s: float) -> None:
    """Replaces the weights of a paused server and forgets what was computed with the old ones.

    Raises EngineUnavailable with the server's reason; a checkpoint that can't be read leaves the old weights.
    """
    common: dict[str, Any] = {"weight_version": version, "flush_cache": True, "load_format": None}
    if isinstance(source, DiskWeights):
        body = common | {"model_path": str(source.path)}
        _checked(server, await server.post("/update_weights_from_disk", body, timeout_s=timeout_s))
        return
    assert isinstance(source, TensorWeights)
    _checked(server, await server.post("/begin_weight_update", {}, timeout_s=timeout_s))
    body = common | {"serialized_named_tensors": list(source.per_rank), "load_format": source.load_format}
    try:
        _checked(server, await server.post("/update_weights_from_tensor", body, timeout_s=timeout_s))
    finally:
        _checked(server, await server.post("/end_weight_update", {}, timeout_s=timeout_s))


def _checked(server: SglangHttp, answer: Any) -> None:
    if isinstance(answer, dict) and answer.get("success") is False:
        raise EngineUnavailable(f"{server.url}: the weights were not replaced: {str(answer.get('message'))[:300]}")
