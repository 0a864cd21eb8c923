"""SkyRL's inference engines as an engine of fairbox's agent loop: ids in; ids and logprobs out.

Everything goes through SkyRL's own client, one prompt at a time, which is what lets it go on over an update of the
weights. It does not say which weights sampled what, so the weight version is always `unknown`.
"""

from __future__ import annotations

from typing import Any

from rollout.engines.base import GenerationRequest
from rollout.interop.engine import ClientEngine, ClientTurn

__all__ = ["SkyRLEngine"]


class SkyRLEngine(ClientEngine):
    """`client` is SkyRL's `InferenceEngineClient`.

    `length_key` is what the backend calls the length of a turn: `max_tokens` of vLLM, `max_new_tokens` of sglang.
    `options` are passed to the client's `generate`.
    """

    who = "SkyRL's engine"

    def __init__(
        self,
        client: Any,
        *,
        model_name: str,
        vocab_size: int,
        max_model_tokens: int,
        length_key: str = "max_tokens",
        options: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(model_name=model_name, vocab_size=vocab_size, max_model_tokens=max_model_tokens)
        self._client = client
        self._length_key = length_key
        self._options = options or {}

    async def _ask(self, request: GenerationRequest) -> Any:
        params = request.params
        sampling = {
            "temperature": params.temperature,
            "top_p": params.top_p,
            "top_k": params.top_k or -1,
            self._length_key: params.max_new_tokens,
            "stop_token_ids": list(params.stop_token_ids),
        }
        if self._length_key == "max_tokens":
            sampling["logprobs"] = 0  # vLLM: the sampled id's own; sglang's engine in SkyRL always returns them
        question = {
            "prompts": None,
            "prompt_token_ids": [list(request.input_ids)],
            "session_ids": [request.trajectory_id],
            "sampling_params": sampling,
        }
        return await self._client.generate(question, **self._options)

    def _read(self, answer: Any) -> ClientTurn:
        """SkyRL's `InferenceEngineOutput` of one prompt."""
        logprobs = answer.get("response_logprobs") or [None]
        return ClientTurn(answer["response_ids"][0], logprobs[0], answer["stop_reasons"][0] == "abort")
