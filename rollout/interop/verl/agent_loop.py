"""An agent loop of verl that plays fairbox's trajectories with verl's servers and fairbox's tools.

    - name: fairbox
      _target_: rollout.interop.verl.agent_loop.FairboxAgentLoop
      settings: {tool: {executor: "127.0.0.1:50051", limiter: "127.0.0.1:50052"}}

What it adds to `ToolAgentLoop`: malformed calls are answered with what is wrong; calls of a turn run in parallel and
none is dropped; ids are append-only by construction, and a chat template that is not is refused; a call that the
service failed is tried again, then the trajectory is, and then it is left out of training.

Turns come from verl's own client (`LLMServerClient.generate`), which balances load and keeps a trajectory on one
server. Logprobs are what that server returns: sglang's are of the distribution after temperature; vLLM's are what
`rollout.logprobs_mode` says.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from executor_service import Cause
from fairbox.config import setting
from fairbox.errors import ConfigError, FairboxError
from rollout.engines.base import GenerationRequest, SamplingParams
from rollout.interop.engine import ClientEngine, ClientTurn, sampling_fields
from rollout.interop.loop import TrainerLoop, TrainerLoopSettings
from rollout.interop.needs import needs
from rollout.interop.scores import RowScorer, ground_truth
from rollout.interop.settings import from_mapping
from rollout.interop.verl.convert import agent_loop_output
from rollout.loop.limits import Limits, StopReason
from rollout.loop.results import TrajectoryResult
from rollout.loop.state import RequestState
from rollout.loop.task import Task
from rollout.tokens.segment import Segment, SegmentKind
from rollout.tokens.trajectory import Trajectory
from rollout.tools.code import CodeInterpreter

with needs("verl", "0.9.1", "pip install verl==0.9.1"):
    from omegaconf import OmegaConf
    from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopOutput, register

_LOG = logging.getLogger("fairbox.rollout")
_WHERE = "settings of the agent loop fairbox"
_NO_OPTIONS = "{}"


class InfraRows(StrEnum):
    """Treatment of trajectories that the service failed."""

    AUTO = "auto"
    """`drop` under verl's trainer v1 (`trainer.use_v1`, the default of 0.9), `mask` under the older one."""
    DROP = "drop"
    """No row: the loop raises `TrajectoryLeftOut`, so that the group has one trajectory less and is a failed one, which
    `trainer.v1.sampler.sync_refill_failed_groups` replaces when nothing of it is left. Trainer v1 alone can take that.
    """
    MASK = "mask"
    """A row with an all-zero response mask and the score 0.0, which the group's mean still sees."""


class TrajectoryLeftOut(FairboxError):
    """The trajectory is not to be trained on; the text says why. For verl's trainer v1."""


@dataclass(frozen=True)
class AgentLoopSettings(TrainerLoopSettings):
    """`settings` in the file of `agent_loop_config_path`. Lengths and turns are verl's own settings."""

    reward: str = setting("", help="As in the other trainers; empty: verl's own.")
    infra_rows: str = setting(
        "auto", choices=InfraRows, help="What becomes of trajectories that the service failed: auto, drop or mask."
    )
    max_tool_calls: int | None = setting(None, help="Tool calls of a trajectory; none: no limit.")
    max_turn_tokens: int | None = setting(None, help="Tokens of one turn; none: no limit of its own.")


@register("fairbox")
class FairboxAgentLoop(AgentLoopBase):  # type: ignore[misc]
    """One trajectory of verl. `settings` is the mapping in the YAML file; the rest is verl's."""

    def __init__(self, *args: Any, settings: Mapping[str, Any] | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._settings = self._with_template_options(from_mapping(AgentLoopSettings, settings, _WHERE))
        rollout = self.rollout_config
        room = rollout.prompt_length + rollout.response_length
        engine = _VerlEngine(
            self.server_manager,
            model_name=str(self.config.actor_rollout_ref.model.get("path", "verl")),
            vocab_size=len(self.tokenizer),
            max_model_tokens=min(room, rollout.get("max_model_len", None) or room),
        )
        limits = Limits(
            max_response_tokens=rollout.response_length,
            max_turns=rollout.multi_turn.get("max_assistant_turns", None) or None,
            max_tool_calls=self._settings.max_tool_calls,
            max_tool_time_s=None,
            max_turn_tokens=self._settings.max_turn_tokens,
        )
        executor, reward = self._settings.tool.executor, self._settings.reward
        self._scorer = RowScorer(reward, executor=executor) if reward else None
        self._loop = TrainerLoop(self._settings, engine, self.tokenizer, limits=limits, scorer=self._scorer)

    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> AgentLoopOutput | list[AgentLoopOutput]:
        """`kwargs` is the row of the data set: `raw_prompt` (messages), and `uid` and `index` if there are.

        Raises TrajectoryLeftOut, under trainer v1, for a trajectory that is not to be trained on."""
        task = Task(
            uid=str(kwargs.get("uid", "")),
            messages=tuple(dict(message) for message in kwargs["raw_prompt"]),
            ground_truth="",
            data_source=str(kwargs.get("data_source", "")),
            where=f"row {kwargs.get('index', '?')}",
            row=kwargs,
        )
        problem = self._prompt_problem(task)
        if self._scorer is not None or self._settings.service.target:
            try:
                task = replace(task, ground_truth=ground_truth(kwargs))
            except ConfigError as error:
                problem = str(error)
        if problem is not None:
            _LOG.error("%s is left out: %s", task.where, problem)
            result = self._unplayed(task, problem)
        else:
            (result,) = await self._loop.play([task], sampling_params)
            if result.masked:
                _LOG.warning("trajectory %s is left out: %s", result.trajectory_id, result.error)
        if result.masked and self._drops():
            raise TrajectoryLeftOut(f"{task.where}: {result.error}")
        return agent_loop_output(result, pad_token_id=self._loop.pad_token_id)

    def _with_template_options(self, settings: AgentLoopSettings) -> AgentLoopSettings:
        """The settings with verl's own options of the chat template, so that prompts are those that verl measured."""
        given = OmegaConf.to_container(OmegaConf.create(self.apply_chat_template_kwargs or {}), resolve=True)
        if not given:
            return settings
        if settings.chat.options != _NO_OPTIONS:
            raise ConfigError(
                f"{_WHERE}: chat.options and data.apply_chat_template_kwargs are both set; set the latter"
            )
        return replace(settings, chat=replace(settings.chat, options=json.dumps(given)))

    def _prompt_problem(self, task: Task) -> str | None:
        """Reason that a prompt can't be played. It is never cut: a prompt without its beginning is another task."""
        try:
            length = len(self._loop.chat.prompt_ids(task.messages, [CodeInterpreter.default_schema.openai()]))
        except Exception as error:  # the boundary to the template, which is given whatever the data set has
            return f"its prompt can't be rendered: {type(error).__name__}: {error}"
        longest = self.rollout_config.prompt_length
        return None if length <= longest else f"its prompt has {length} ids, data.max_prompt_length is {longest}"

    def _unplayed(self, task: Task, problem: str) -> TrajectoryResult:
        """The row of a task that can't be played: one id, which is not trained on."""
        return TrajectoryResult(
            trajectory_id="",
            uid=task.uid,
            index=0,
            trajectory=Trajectory((Segment(SegmentKind.PROMPT, (self._loop.pad_token_id,)),)),
            messages=task.messages,
            tool_calls=(),
            state=RequestState.FAILED,
            stop_reason=StopReason.BAD_PROMPT,
            cause=Cause.TASK,
            turns=0,
            sampling=SamplingParams(),
            error=problem,
            unscored=True,
        )

    def _drops(self) -> bool:
        if self._settings.infra_rows == InfraRows.AUTO:
            trainer = self.config.get("trainer", None)
            return bool(trainer is not None and trainer.get("use_v1", False))
        return self._settings.infra_rows == InfraRows.DROP


class _VerlEngine(ClientEngine):
    """`client` is the `server_manager` that verl gives an agent loop. Weight versions are verl's global steps, as text:
    one, or `LOW..HIGH` where a turn was sampled across an update."""

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
        aborted = answer.stop_reason in ("aborted", "abort")  # as before an update of the weights
        return ClientTurn(answer.token_ids, answer.log_probs, aborted, _version(answer.extra_fields))


def _version(fields: Mapping[str, Any]) -> str:
    low, high = fields.get("min_global_steps"), fields.get("max_global_steps")
    if high is None:
        return "unknown"
    return str(high) if low in (None, high) else f"{low}..{high}"
