"""verl's inference servers as an engine of fairbox's agent loop: ids in; ids and logprobs out.

Everything goes through verl's own client (`LLMServerClient.generate`), which balances load and keeps a trajectory on
one server. Weight versions are verl's global steps, as text; `LOW..HIGH` where a turn was sampled across an update.

Logprobs are what verl's server returns: sglang's are of the distribution after temperature; vLLM's are what
`rollout.logprobs_mode` says.
"""

from __future__ import annotations

from typing import Any

from rollout.engines.base import GenerationRequest
from rollout.interop.engine import ClientEngine, ClientTurn, sampling_fields

_ABORTED = ("aborted", "abort")
"""verl's words for a request that the server gave up, as before an update of the weights."""


class VerlEngine(ClientEngine):
    """`client` is the `server_manager` that verl gives an agent loop."""

    who = "verl's server"

    async def ask(self, request: GenerationRequest) -> ClientTurn:
        """Reads verl's `TokenOutput`."""
        sampling = sampling_fields(request.params) | {
            "repetition_penalty": 1.0,
            "logprobs": True,
            "max_tokens": request.params.max_new_tokens,
        }
        # The trajectory's id: verl keeps requests of one id on one server, and makes ids of its own for it.
        answer = await self.client.generate(
            request_id=request.trajectory_id, prompt_ids=list(request.input_ids), sampling_params=sampling
        )
        aborted = answer.stop_reason in _ABORTED
        return ClientTurn(answer.token_ids, answer.log_probs, aborted, _version(answer.extra_fields))


def _version(fields: dict[str, Any]) -> str:
    low, high = fields.get("min_global_steps"), fields.get("max_global_steps")
    if high is None:
        return "unknown"
    return str(high) if low in (None, high) else f"{low}..{high}"


def global_steps(version: str) -> tuple[int, ...]:
    """The steps that a weight version of this engine names: one, or the first and the last; none for other versions."""
    parts = version.split("..")
    return tuple(int(part) for part in parts) if all(part.isdecimal() for part in parts) else ()
