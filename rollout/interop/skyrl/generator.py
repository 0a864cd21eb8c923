"""A generator of SkyRL that plays fairbox's trajectories: `generate(GeneratorInput) -> GeneratorOutput`.

Invariants: one row for each prompt, in order; it raises for no trajectory; what the service failed is played again
within a budget, and then not trained on, with its group. It needs no class of SkyRL's, so it works with skyrl-train 0.3
and skyrl 0.4.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fairbox.config import check, setting
from rollout.engines.base import SamplingParams
from rollout.interop.chat import chat_of, pad_token_id
from rollout.interop.scores import REWARD_HELP, RowScorer, ground_truth
from rollout.interop.settings import InterpreterSettings, from_mapping
from rollout.interop.shared import shared_interpreter
from rollout.interop.skyrl.convert import generator_output
from rollout.interop.skyrl.engine import SkyRLEngine
from rollout.loop.agent_loop import AgentLoop
from rollout.loop.groups import RetryBudget, Schedule
from rollout.loop.limits import Limits
from rollout.loop.results import TrajectoryResult
from rollout.loop.runner import RolloutRunner
from rollout.loop.scoring import SCORE_TIMEOUT_S
from rollout.loop.task import Task
from rollout.rewards import Reward, Sample
from rollout.tools.formats import check_format, find_format
from rollout.tools.toolbox import Toolbox

__all__ = ["FairboxGenerator", "GeneratorSettings"]

_LENGTH_KEYS = {"vllm": "max_tokens", "sglang": "max_new_tokens"}


@dataclass(frozen=True)
class GeneratorSettings:
    """How trajectories are played."""

    tool: InterpreterSettings = setting(factory=InterpreterSettings, help="The code interpreter and its services.")
    limits: Limits = setting(factory=Limits, help="When a trajectory has had enough.")
    reward: str = setting("gsm8k", help=REWARD_HELP)
    score_timeout_s: float = setting(
        SCORE_TIMEOUT_S, above=0, help="Longest time of scoring a trajectory; then it is masked."
    )
    backend: str = setting("vllm", choices=_LENGTH_KEYS, help="SkyRL's generator.backend: vllm or sglang.")
    max_model_tokens: int = setting(
        32_768, least=2, help="Longest context of the engines, prompt and response together."
    )
    concurrency: int = setting(256, least=1, help="Trajectories that run at once.")
    tool_format: str = setting("auto", help="How the model writes calls; auto: as its chat template does.")
    max_parallel_calls: int = setting(4, least=1, help="Tool calls of one turn that run at once.")
    infra_retries: int = setting(1, least=0, help="How often a trajectory that the service failed is played again.")
    mask_groups: bool = setting(True, help="Train on no trajectory of a group in which the service failed one.")
    engine_timeout_s: float = setting(
        3600.0, above=0, help="Longest wait for one turn, updates of the weights included."
    )

    def validate(self) -> None:
        """ConfigError for what types can't say."""
        check(self)
        self.tool.validate()
        check_format(self.tool_format)


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
        self._settings = from_mapping(GeneratorSettings, settings, "settings of the generator fairbox")
        self._scorer = RowScorer(self._settings.reward, executor=self._settings.tool.executor)
        self._chat = chat_of(tokenizer)
        self._format = find_format(self._settings.tool_format, self._chat)
        self._pad_token_id = pad_token_id(tokenizer)
        self._engine = SkyRLEngine(
            client,
            model_name=str(getattr(tokenizer, "name_or_path", "") or "skyrl"),
            vocab_size=len(tokenizer),
            max_model_tokens=self._settings.max_model_tokens,
            length_key=_LENGTH_KEYS[self._settings.backend],
            options=options,
        )

    async def generate(self, input_batch: Mapping[str, Any], disable_tqdm: bool = False) -> dict[str, Any]:
        """`input_batch` is a `GeneratorInput`: one row for each prompt, with `env_extras` as the data has them."""
        settings = self._settings
        interpreter = await shared_interpreter(settings.tool)
        loop = AgentLoop(
            engine=self._engine,
            chat=self._chat,
            tool_format=self._format,
            tools=Toolbox([interpreter], max_parallel_calls=settings.max_parallel_calls),
            limits=settings.limits,
            sampling=_sampling(input_batch.get("sampling_params")),
            queue_timeout_s=settings.engine_timeout_s,
        )
        tasks = _tasks(input_batch)
        results: dict[int, TrajectoryResult] = {}
        runner = RolloutRunner(
            loop,
            self._reward,
            lambda result, _: results.__setitem__(result.index, result),
            schedule=Schedule(concurrency=settings.concurrency),
            retries=RetryBudget(settings.infra_retries, len(tasks)),
            score_timeout_s=settings.score_timeout_s,
        )
        await runner.run(tasks)
        return generator_output(
            [results[index] for index in range(len(tasks))],
            pad_token_id=self._pad_token_id,
            trajectory_ids=input_batch.get("trajectory_ids"),
            mask_groups=settings.mask_groups,
        )

    async def _reward(self, task: Task, result: TrajectoryResult) -> Reward:
        return await self._scorer.score(Sample.of(task, result))


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


def _sampling(given: Mapping[str, Any] | None) -> SamplingParams:
    """SkyRL's parameters of a batch; its -1 for `top_k` is 0 here. None: temperature 1, nothing cut."""
    given = given or {}
    return SamplingParams(
        temperature=float(given.get("temperature", 1.0)),
        top_p=float(given.get("top_p", 1.0)),
        top_k=max(0, int(given.get("top_k", 0))),
    )
