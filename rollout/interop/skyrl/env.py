"""An environment of skyrl-gym whose tool is the code interpreter.

    skyrl_gym.register(id="fairbox", entry_point="rollout.interop.skyrl.env:FairboxEnv")

A turn without a tool call ends the episode and is scored; any other is answered, and a malformed call with what is
wrong with it. The signature of the tool is put into the system turn in the Hermes format, because SkyRL's generator
does not pass tools to the chat template.

skyrl-gym knows no episode without a reward. One that the service failed ends with the reward 0.0, `infra` in its
metadata and `infra: 1` in its metrics, and never with text for the model; SkyRL's own generator trains on it all the
same. `rollout.interop.skyrl.generator.FairboxGenerator` masks it.
"""

from __future__ import annotations

import logging
import re
import uuid
from collections.abc import Mapping
from typing import Any

from fairbox.errors import FairboxError
from rollout.interop.needs import needs
from rollout.interop.portal import process_loop
from rollout.interop.scores import RowScorer, ground_truth
from rollout.interop.settings import TrainerSettings, from_mapping
from rollout.interop.shared import SharedTools
from rollout.rewards import Sample
from rollout.tokens.conversation import with_hermes_tools
from rollout.tokens.tokenizer import Message
from rollout.tools import parse_tool_calls
from rollout.tools.code import CodeInterpreter

with needs("skyrl-gym", "0.4.0", "pip install skyrl-gym==0.4.0"):
    from skyrl_gym.envs.base_text_env import BaseTextEnv, BaseTextEnvStepOutput

_LOG = logging.getLogger("fairbox.rollout")
_STEP_TIMEOUT_S = 900.0
"""Longest wait for the answers of a turn, or its score."""

_SPECIAL = re.compile(r"<(\|[^<>|\s]{1,64}\||/?tool_response)>")
"""Marks by which chat templates structure conversations. An environment does not know the tokenizer, so it puts a space
into everything in a program's output that looks like one."""


class FairboxEnv(BaseTextEnv):  # type: ignore[misc]
    """One episode. `env_config` is `environment.skyrl_gym.fairbox` in SkyRL's configuration, `extras` the row:
    `reward_spec.ground_truth`, and `max_turns`, which SkyRL adds."""

    def __init__(self, env_config: Any = None, extras: Mapping[str, Any] | None = None) -> None:
        super().__init__()
        extras = extras or {}
        settings = from_mapping(TrainerSettings, env_config, "environment fairbox")
        self._tools = SharedTools(settings.tool, max_parallel_calls=settings.max_parallel_calls)
        self._scorer = RowScorer(settings.reward, executor=settings.tool.executor)
        self._row = dict(extras)
        self._truth = ground_truth(extras)
        self.max_turns = int(extras.get("max_turns", 1))
        self._id = uuid.uuid4().hex
        self._calls = 0
        self._infra: str | None = None

    def init(self, prompt: list[dict[str, str]]) -> tuple[list[Message], dict[str, Any]]:
        """The prompt with the tool's signature in its system turn."""
        return with_hermes_tools(prompt, [CodeInterpreter.default_schema.openai()]), {}

    def step(self, action: str) -> BaseTextEnvStepOutput:
        """Takes a turn of the model. Raises nothing that the model or the service could cause."""
        self.turns += 1
        calls = parse_tool_calls(action)
        if not calls or self.turns >= self.max_turns:
            return self._scored(action)
        self._calls += len(calls)
        try:
            responses = process_loop().call(self._tools.answer(self._id, calls), timeout=_STEP_TIMEOUT_S)
        except Exception as error:  # the boundary to SkyRL, which ends a whole step for whatever is raised
            return self._failed(error)
        observations = [{"role": "tool", "content": _SPECIAL.sub(r"< \1>", each.text)} for each in responses]
        return _step(observations=observations, metadata={"outcomes": [str(each.outcome) for each in responses]})

    def _scored(self, action: str) -> BaseTextEnvStepOutput:
        """The last turn."""
        sample = Sample(
            text=action,
            ground_truth=self._truth,
            data_source=str(self._row.get("data_source", "")),
            row=self._row,
            turns=self.turns,
            trajectory_id=self._id,
        )
        try:
            found = process_loop().call(self._scorer.score(sample), timeout=_STEP_TIMEOUT_S)
        except Exception as error:  # the boundary to SkyRL, as above
            return self._failed(error)
        return _step(reward=found.value, done=True, metadata={"reward_parts": dict(found.parts)})

    def _failed(self, error: Exception) -> BaseTextEnvStepOutput:
        if not isinstance(error, (FairboxError, TimeoutError)):
            _LOG.error("a turn of episode %s failed", self._id, exc_info=error)
        self._infra = str(error)
        return _step(done=True, metadata={"infra": self._infra})

    def close(self) -> None:
        """Releases what the episode holds. Idempotent. Raises nothing: SkyRL would end a whole step for it."""
        if not self._calls:
            return  # or a loop would be started for nothing
        try:
            process_loop().call(self._tools.release(self._id), timeout=_STEP_TIMEOUT_S)
        except (FairboxError, TimeoutError) as error:
            _LOG.warning("episode %s could not be released: %s", self._id, error)

    def get_metrics(self) -> dict[str, Any]:
        return {"turns": self.turns, "tool_calls": self._calls, "infra": int(self._infra is not None)}


def _step(
    *,
    observations: list[dict[str, str]] | None = None,
    reward: float = 0.0,
    done: bool = False,
    metadata: dict[str, Any] | None = None,
) -> BaseTextEnvStepOutput:
    return BaseTextEnvStepOutput(observations=observations or [], reward=reward, done=done, metadata=metadata or {})
