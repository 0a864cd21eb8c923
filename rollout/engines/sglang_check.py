"""Finds out what a server is, and whether its logprobs are the ones that are promised, before any turn is sampled.

The distribution after temperature is told from the one before it by asking for one id twice: the distance between the
logprobs of the most probable id and of the 20th is (logit difference) / temperature, so at temperature 0.5 it is twice
that at 1. A server started with SGLANG_RETURN_ORIGINAL_LOGPROB=1 gives the same distance both times.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Any

from rollout.engines.base import EngineUnavailable
from rollout.engines.sglang_http import SglangHttp

__all__ = ["ServerFacts", "check_logprobs", "read_facts"]

_TOP = 20
_TOLERANCE = 0.25
"""Of the distance at temperature 1: far above the noise of bfloat16, far below the factor of two in question."""


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """What a server says of itself."""

    model_path: str
    weight_version: str
    version: str
    """sglang's."""
    max_model_tokens: int
    """Prompt and sampled ids together, with what the server keeps for itself taken off."""
    honours_seeds: bool
    """Whether a request's seed fixes its ids: only with `--enable-deterministic-inference`."""
    incremental: bool
    """Whether the events of a stream hold only what is new."""


async def read_facts(server: SglangHttp, *, timeout_s: float) -> ServerFacts:
    """Asks /model_info and /server_info. Raises EngineUnavailable when they don't say what is needed."""
    model = await server.get("/model_info", timeout_s=timeout_s)
    info = await server.get("/server_info", timeout_s=timeout_s)
    try:
        return ServerFacts(
            model_path=str(model["model_path"]),
            weight_version=str(model["weight_version"]),
            version=str(info["version"]),
            max_model_tokens=int(info["max_req_input_len"]),
            honours_seeds=bool(info.get("enable_deterministic_inference")),
            incremental=bool(info.get("incremental_streaming_output")),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise EngineUnavailable(f"{server.url}: is no sglang server of a known version: {error!r}") from None


async def check_logprobs(server: SglangHttp, *, timeout_s: float) -> None:
    """Raises EngineUnavailable unless logprobs are of the distribution after temperature."""
    plain = await _distance(server, 1.0, timeout_s)
    sharp = await _distance(server, 0.5, timeout_s)
    if abs(sharp - 2 * plain) > _TOLERANCE * plain:
        raise EngineUnavailable(
            f"{server.url}: its logprobs don't follow the temperature (distance {plain:.4g} at 1 and {sharp:.4g} at "
            "0.5, which should be twice that); start it without SGLANG_RETURN_ORIGINAL_LOGPROB"
        )


async def _distance(server: SglangHttp, temperature: float, timeout_s: float) -> float:
    # `stream_interval` is not needed here, but in every turn: a server that does not know it is refused now.
    sampling = {"max_new_tokens": 1, "temperature": temperature, "ignore_eos": True, "stream_interval": 2}
    body: dict[str, Any] = {"rid": uuid.uuid4().hex, "input_ids": [1, 2, 3], "sampling_params": sampling}
    body |= {"return_logprob": True, "logprob_start_len": -1, "top_logprobs_num": _TOP}
    answer = await server.post("/generate", body, timeout_s=timeout_s)
    try:
        logprobs = [float(entry[0]) for entry in answer["meta_info"]["output_top_logprobs"][0]]
    except (KeyError, TypeError, IndexError, ValueError) as error:
        raise EngineUnavailable(f"{server.url}: gave no logprobs: {error!r}") from None
    return max(logprobs) - min(logprobs)
