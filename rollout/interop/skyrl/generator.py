"""A generator of SkyRL that plays fairbox's trajectories: `generate(GeneratorInput) -> GeneratorOutput`.

SkyRL's own inference engines sample, through its own client and one prompt at a time, which is what lets them go on
over an update of the weights. They don't say which weights sampled what, so the weight version is always `unknown`.

Invariants: one row for each prompt, in order; it raises for no trajectory; what the service failed is played again
within a budget, and then not trained on, with its group. It needs no class of SkyRL's, so it works with skyrl-train 0.3
and skyrl 0.4.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fairbox.config import setting
from rollout.engines.base import GenerationRequest
from rollout.interop.engine import ClientEngine, ClientTurn, sampling_fields
from rollout.interop.loop import TrainerLoop, TrainerLoopSettings
from rollout.interop.scores import RowScorer, ground_truth
from rollout.interop.settings import from_mapping
from rollout.interop.skyrl.convert import generator_output
from rollout.loop.limits import Limits
from rollout.loop.task import Task

_LENGTH_KEYS = {"vllm": "max_tokens", "sglang": "max_new_tokens"}


@dataclass(frozen=True)
class GeneratorSettings(TrainerLoopSettings):
    """Settings of the generator."""

    limits: Limits = setting(factory=Limits, help="When a trajectory has had enough.")
    backend: str = setting("vllm", choices=_LENGTH_KEYS, help="SkyRL's generator.backend: vllm or sglang.")
    max_model_tokens: int = setting(
        32_768, least=2, help="Longest context of the engines, prompt and response together."
    )
    concurrency: int = setting(256, least=1, help="Trajectories that run at once.")
    mask_groups: bool = setting(True, help="Train on no trajectory of a group in which the service failed one.")


class FairboxGenerator:
    """`client` is SkyRL's inference engine client, `tokenizer` the one of transformers that SkyRL has loaded.

    `options` are passed to the client's `generate`: skyrl 0.4 asks for `{"model": NAME}`. Raises ConfigError.
    """

    def __init__(
        self,
        client: Any,
        tokenizer: Any,
        settings: Mapping[str, Any] | None = None,
        *,
        options: dict[str, Any] | None = None,
    ) -> None:
        ours = self._settings = from_mapping(GeneratorSettings, settings, "settings of the generator fairbox")
        engine = _SkyRLEngine(
            client,
            model_name=str(getattr(tokenizer, "name_or_path", "") or "skyrl"),
            vocab_size=len(tokenizer),
            max_model_tokens=ours.max_model_tokens,
        )
        engine.length_key, engine.options = _LENGTH_KEYS[ours.backend], options or {}
        scorer = RowScorer(ours.reward, executor=ours.tool.executor)
        self._loop = TrainerLoop(ours, engine, tokenizer, limits=ours.limits, scorer=scorer)

    async def generate(self, input_batch: Mapping[str, Any], disable_tqdm: bool = False) -> dict[str, Any]:
        """`input_batch` is a `GeneratorInput`: one row for each prompt, with `env_extras` as the data has them."""
        tasks, sampling = _tasks(input_batch), input_batch.get("sampling_params")
        return generator_output(
            await self._loop.play(tasks, sampling, concurrency=self._settings.concurrency),
            pad_token_id=self._loop.pad_token_id,
            trajectory_ids=input_batch.get("trajectory_ids"),
            mask_groups=self._settings.mask_groups,
        )


class _SkyRLEngine(ClientEngine):
    """`client` is SkyRL's `InferenceEngineClient`."""

    who = "SkyRL's engine"
    length_key = "max_tokens"
    """Name that the backend gives the length of a turn: `max_tokens` of vLLM, `max_new_tokens` of sglang."""
    options: Mapping[str, Any]
    """Arguments of the client's `generate` beside the question."""

    async def ask(self, request: GenerationRequest) -> ClientTurn:
        """Reads SkyRL's `InferenceEngineOutput` of one prompt."""
        sampling = sampling_fields(request.params) | {self.length_key: request.params.max_new_tokens}
        if self.length_key == "max_tokens":
            sampling["logprobs"] = 0  # vLLM: the sampled id's own; sglang's engine in SkyRL always returns them
        question = {
            "prompts": None,
            "prompt_token_ids": [list(request.input_ids)],
            "session_ids": [request.trajectory_id],
            "sampling_params": sampling,
        }
        answer = await self.client.generate(question, **self.options)
        logprobs = answer.get("response_logprobs") or [None]
        return ClientTurn(answer["response_ids"][0], logprobs[0], answer["stop_reasons"][0] == "abort")


def _tasks(input_batch: Mapping[str, Any]) -> list[Task]:
    prompts = input_batch["prompts"]
    ids = input_batch.get("trajectory_ids") or [None] * len(prompts)
    extras = input_batch.get("env_extras") or [{}] * len(prompts)
    return [
        Task(
            uid=str(index if each is None else each.instance_id),
            messages=tuple(dict(message) for message in prompt),
            ground_truth=ground_truth(extra),
            data_source=str(extra.get("data_source", "")),
            where=f"prompt {index}",
            row=dict(extra),
        )
        for index, (prompt, each, extra) in enumerate(zip(prompts, ids, extras, strict=True))
    ]
