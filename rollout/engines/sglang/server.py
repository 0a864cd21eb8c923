"""One sglang server: what it says of itself, and its control calls.

Control calls go to each server itself: sglang-router does not pass them on. All may be called again: aborting, pausing
and continuing twice is the same as once, and so is loading the same weights.

`check_logprobs`: the distribution after temperature is told from the one before it by asking for one id twice: the
distance between the logprobs of the most probable id and of the 20th is (logit difference) / temperature, so at
temperature 0.5 it is twice that at 1. A server started with SGLANG_RETURN_ORIGINAL_LOGPROB=1 gives the same distance
both times.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Any

from fairbox.errors import FieldError, FieldErrors
from rollout.engines.base import EngineUnavailable
from rollout.engines.http import EngineHttp
from rollout.engines.weights import DiskWeights, WeightSource

_TOP = 20
_TOLERANCE = 0.25
"""Part of the distance at temperature 1: far above the noise of bfloat16, far below the factor of two in question."""


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """Facts that a server reports about itself."""

    model_path: str
    weight_version: str
    max_model_tokens: int
    """Prompt and sampled ids together, with what the server keeps for itself taken off."""
    incremental: bool
    """Says whether the events of a stream hold only what is new."""


def check_source(source: WeightSource, version: str) -> DiskWeights:
    """Raises FieldErrors for a source that no server could load."""
    errors = []
    if not version:
        errors.append(FieldError("version", "is empty, must name the weights"))
    if not isinstance(source, DiskWeights):
        errors.append(FieldError("source", f"is {type(source).__name__}, which no server can read"))
    elif not source.path.is_absolute():
        errors.append(FieldError("source.path", f"is {str(source.path)!r}, must be absolute: servers resolve it"))
    if errors:
        raise FieldErrors(errors)
    assert isinstance(source, DiskWeights)
    return source


class SglangServer(EngineHttp):
    """`async with SglangServer(url) as server`. Every call raises EngineUnavailable."""

    async def facts(self, *, timeout_s: float) -> ServerInfo:
        """Asks /model_info and /server_info; they must say what is needed."""
        model = await self.get("/model_info", timeout_s=timeout_s)
        info = await self.get("/server_info", timeout_s=timeout_s)
        try:
            return ServerInfo(
                model_path=str(model["model_path"]),
                weight_version=str(model["weight_version"]),
                max_model_tokens=int(info["max_req_input_len"]),
                incremental=bool(info.get("incremental_streaming_output")),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise EngineUnavailable(f"{self.url}: is no sglang server of a known version: {error!r}") from None

    async def check_logprobs(self, *, timeout_s: float) -> None:
        """Refuses a server whose logprobs are not of the distribution after temperature."""
        plain = await self._distance(1.0, timeout_s)
        sharp = await self._distance(0.5, timeout_s)
        if abs(sharp - 2 * plain) > _TOLERANCE * plain:
            raise EngineUnavailable(
                f"{self.url}: its logprobs don't follow the temperature (distance {plain:.4g} at 1 and {sharp:.4g} at "
                "0.5, which should be twice that); start it without SGLANG_RETURN_ORIGINAL_LOGPROB"
            )

    async def weight_version(self, *, timeout_s: float) -> str:
        """Version of the weights that it samples with now. Answers without the scheduler, so even while paused."""
        answer = await self.get("/model_info", timeout_s=timeout_s)
        if not isinstance(answer, dict) or "weight_version" not in answer:
            raise EngineUnavailable(f"{self.url}: does not tell its weight version")
        return str(answer["weight_version"])

    async def abort(self, rid: str, *, timeout_s: float) -> None:
        """Ends one request, whose answer then holds what there is. Unknown ids are fine.

        The server takes `rid` as a prefix: ids must be of one length, or `ab-1` ends `ab-10` too.
        """
        await self.post("/abort_request", {"rid": rid}, timeout_s=timeout_s)

    async def pause(self, *, timeout_s: float) -> None:
        """Ends every request of every client, each with what it has; later ones wait there."""
        await self.post("/pause_generation", {"mode": "abort"}, timeout_s=timeout_s)

    async def resume(self, *, timeout_s: float) -> None:
        """Lets requests that wait begin."""
        await self.post("/continue_generation", {}, timeout_s=timeout_s)

    async def load(self, source: DiskWeights, version: str, *, timeout_s: float) -> None:
        """Replaces the weights of a paused server and forgets what was computed with the old ones.

        Fails with the server's reason; a checkpoint that can't be read leaves the old weights.
        """
        body = {"model_path": str(source.path), "weight_version": version, "flush_cache": True, "load_format": None}
        answer = await self.post("/update_weights_from_disk", body, timeout_s=timeout_s)
        if isinstance(answer, dict) and answer.get("success") is False:
            message = str(answer.get("message"))[:300]
            raise EngineUnavailable(f"{self.url}: the weights were not replaced: {message}")

    async def _distance(self, temperature: float, timeout_s: float) -> float:
        # `stream_interval` is not needed here, but in every turn: a server that does not know it is refused now.
        sampling = {"max_new_tokens": 1, "temperature": temperature, "ignore_eos": True, "stream_interval": 2}
        body: dict[str, Any] = {"rid": uuid.uuid4().hex, "input_ids": [1, 2, 3], "sampling_params": sampling}
        body |= {"return_logprob": True, "logprob_start_len": -1, "top_logprobs_num": _TOP}
        answer = await self.post("/generate", body, timeout_s=timeout_s)
        try:
            logprobs = [float(entry[0]) for entry in answer["meta_info"]["output_top_logprobs"][0]]
        except (KeyError, TypeError, IndexError, ValueError) as error:
            raise EngineUnavailable(f"{self.url}: gave no logprobs: {error!r}") from None
        return max(logprobs) - min(logprobs)
