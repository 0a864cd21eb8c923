"""An agent loop of verl that plays fairbox's trajectories with verl's servers and fairbox's tools.

    - name: fairbox
      _target_: rollout.interop.verl.agent_loop.FairboxAgentLoop
      settings: {tool: {executor: "127.0.0.1:50051", limiter: "127.0.0.1:50052"}}

What it adds to `ToolAgentLoop`: malformed calls are answered with what is wrong; calls of a turn run in parallel and
none is dropped; ids are append-only by construction, and a chat template that is not is refused; a call that the
service failed is tried again, then the trajectory is, and then it is left out of training. It raises for no trajectory.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from executor_service import Cause
from fairbox.clock import MonotonicClock
from fairbox.config import check, setting
from fairbox.errors import ConfigError
from rollout.engines.base import SamplingParams
from rollout.interop.chat import chat_of, pad_token_id
from rollout.interop.needs import needs
from rollout.interop.scores import REWARD_HELP, RowScorer, ground_truth
from rollout.interop.settings import InterpreterSettings, from_mapping
from rollout.interop.shared import shared_interpreter
from rollout.interop.verl.convert import agent_loop_output
from rollout.interop.verl.engine import VerlEngine
from rollout.loop.agent_loop import AgentLoop
from rollout.loop.groups import RetryBudget
from rollout.loop.limits import Limits
from rollout.loop.results import TrajectoryResult
from rollout.loop.scoring import SCORE_TIMEOUT_S, Scoring
from rollout.loop.task import Task
from rollout.rewards import Sample
from rollout.tools.formats import check_format, find_format
from rollout.tools.toolbox import Toolbox

with needs("verl", "0.9.1", "pip install verl==0.9.1"):
    from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopMetrics, AgentLoopOutput, register

__all__ = ["AgentLoopSettings", "FairboxAgentLoop", "InfraRows"]

_LOG = logging.getLogger("fairbox.rollout")


class InfraRows(StrEnum):
    """What becomes of trajectories that the service failed."""

    AUTO = "auto"
    """`drop` under verl's trainer v1 (`trainer.use_v1`, the default of 0.9), `mask` under the older one."""
    DROP = "drop"
    """No row: the group has one trajectory less. Trainer v1 alone can take that."""
    MASK = "mask"
    """A row with an all-zero response mask and the score 0.0, which the group's mean still sees."""


@dataclass(frozen=True)
class AgentLoopSettings:
    """`settings` in the file of `agent_loop_config_path`. Lengths and turns are verl's own settings."""

    tool: InterpreterSettings = setting(factory=InterpreterSettings, help="The code interpreter and its services.")
    infra_rows: str = setting(
        "auto", choices=InfraRows, help="What becomes of trajectories that the service failed: auto, drop or mask."
    )
    infra_retries: int = setting(1, least=0, help="How often a trajectory that the service failed is played again.")
    tool_format: str = setting("auto", help="How the model writes calls; auto: as its chat template does.")
    reward: str = setting("", help=f"{REWARD_HELP} Empty: verl's own.")
    score_timeout_s: float = setting(SCORE_TIMEOUT_S, above=0, help="Longest time of scoring a trajectory by `reward`.")
    max_parallel_calls: int = setting(4, least=1, help="Tool calls of one turn that run at once.")
    max_tool_calls: int | None = setting(None, help="Tool calls of a trajectory; none: no limit.")
    max_turn_tokens: int | None = setting(None, help="Tokens of one turn; none: no limit of its own.")
    engine_timeout_s: float = setting(
        3600.0, above=0, help="Longest wait for one turn, updates of the weights included."
    )

    def validate(self) -> None:
        """ConfigError for what types can't say."""
        check(self)
        self.tool.validate()
        check_format(self.tool_format)


@register("fairbox")
class FairboxAgentLoop(AgentLoopBase):  # type: ignore[misc]
    """One trajectory of verl. `settings` is the mapping in the YAML file; the rest is verl's."""

    def __init__(self, *args: Any, settings: Mapping[str, Any] | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._settings = from_mapping(AgentLoopSettings, settings, "settings of the agent loop fairbox")
        self._chat = chat_of(self.tokenizer)
        self._format = find_format(self._settings.tool_format, self._chat)
        rollout = self.rollout_config
        room = rollout.prompt_length + rollout.response_length
        self._engine = VerlEngine(
            self.server_manager,
            model_name=str(self.config.actor_rollout_ref.model.get("path", "verl")),
            vocab_size=len(self.tokenizer),
            max_model_tokens=min(room, rollout.get("max_model_len", None) or room),
        )
        self._limits = Limits(
            max_response_tokens=rollout.response_length,
            max_turns=rollout.multi_turn.get("max_assistant_turns", None) or None,
            max_tool_calls=self._settings.max_tool_calls,
            max_wall_time_s=None,
            max_turn_tokens=self._settings.max_turn_tokens,
        )
        self._pad_token_id = pad_token_id(self.tokenizer)
        executor, reward = self._settings.tool.executor, self._settings.reward
        self._scorer = RowScorer(reward, executor=executor) if reward else None

    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> AgentLoopOutput | list[AgentLoopOutput]:
        """`kwargs` is the row of the data set: `raw_prompt` (messages), and `uid` and `index` where there are."""
        interpreter = await shared_interpreter(self._settings.tool)
        loop = AgentLoop(
            engine=self._engine,
            chat=self._chat,
            tool_format=self._format,
            tools=Toolbox([interpreter], max_parallel_calls=self._settings.max_parallel_calls),
            limits=self._limits,
            sampling=_sampling(sampling_params),
            queue_timeout_s=self._settings.engine_timeout_s,
        )
        task = Task(
            uid=str(kwargs.get("uid", "")),
            messages=tuple(dict(message) for message in kwargs["raw_prompt"]),
            ground_truth="",
            data_source=str(kwargs.get("data_source", "")),
            where=f"row {kwargs.get('index', '?')}",
            row=kwargs,
        )
        problem = self._prompt_problem(loop, task)
        if self._scorer is not None:
            try:
                task = replace(task, ground_truth=ground_truth(kwargs))
            except ConfigError as error:
                problem = str(error)
        if problem is not None:
            _LOG.error("%s is left out: %s", task.where, problem)
            return self._left_out(problem)
        return self._output(await self._scored(task, await self._play(loop, task)))

    def _prompt_problem(self, loop: AgentLoop, task: Task) -> str | None:
        """Why a prompt can't be played. It is never cut: a prompt without its beginning is another task."""
        try:
            length = len(self._chat.prompt_ids(task.messages, loop.tools.schemas))
        except Exception as error:  # the boundary to the template, which is given whatever the data set has
            return f"its prompt can't be rendered: {type(error).__name__}: {error}"
        longest = self.rollout_config.prompt_length
        return None if length <= longest else f"its prompt has {length} ids, data.max_prompt_length is {longest}"

    async def _play(self, loop: AgentLoop, task: Task) -> TrajectoryResult:
        attempt = 1
        while True:
            result = await loop.run(task, index=0, seed=None, attempt=attempt)
            # Again is safe: nothing of the failed attempt was handed over, and programs leave nothing behind.
            if not result.masked or attempt > self._settings.infra_retries:
                return result
            attempt += 1

    async def _scored(self, task: Task, result: TrajectoryResult) -> TrajectoryResult:
        """By fairbox's reward, where one is set: what it can't score is left out as what the service failed is."""
        scorer = self._scorer
        if scorer is None:
            return result
        retries = RetryBudget(self._settings.infra_retries, self._settings.infra_retries)
        scoring = Scoring(
            lambda task, result: scorer.score(Sample.of(task, result)),
            timeout_s=self._settings.score_timeout_s,
            retries=retries,
            clock=MonotonicClock(),
        )
        return await scoring.scored(task, result)

    def _output(self, result: TrajectoryResult) -> AgentLoopOutput | list[AgentLoopOutput]:
        if result.masked:
            _LOG.warning("trajectory %s is left out: %s", result.trajectory_id, result.error)
            if self._drops():
                return []
        return agent_loop_output(result, pad_token_id=self._pad_token_id)

    def _left_out(self, problem: str) -> AgentLoopOutput | list[AgentLoopOutput]:
        """The row of a task that can't be played: one id, which is not trained on."""
        if self._drops():
            return []
        pad = [self._pad_token_id]
        fields = {"turn_scores": [], "tool_rewards": [], "fairbox_masked": True, "fairbox_infra": problem}
        return AgentLoopOutput(
            prompt_ids=pad,
            response_ids=pad,
            response_mask=[0],
            response_logprobs=[0.0],
            reward_score=0.0,
            num_turns=1,
            metrics=AgentLoopMetrics(),
            extra_fields=fields | {"fairbox_cause": str(Cause.TASK)},
        )

    def _drops(self) -> bool:
        if self._settings.infra_rows == InfraRows.AUTO:
            trainer = self.config.get("trainer", None)
            return bool(trainer is not None and trainer.get("use_v1", False))
        return self._settings.infra_rows == InfraRows.DROP


def _sampling(given: Mapping[str, Any]) -> SamplingParams:
    """verl's parameters; its -1 for `top_k` is 0 here. `repetition_penalty` is always 1.0 there."""
    return SamplingParams(
        temperature=float(given.get("temperature", 1.0)),
        top_p=float(given.get("top_p", 1.0)),
        top_k=max(0, int(given.get("top_k", 0))),
    )
