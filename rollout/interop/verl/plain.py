"""The code interpreter with the methods that verl's agent loop calls. It imports nothing of verl.

verl calls `create`, `execute` and `release` for every single call, on one object for all trajectories of a worker; the
trajectory is known by `agent_data.request_id`, and has ended when verl has dropped `agent_data`: what the interpreter
holds for it is then released with the next call of any trajectory. verl's older rollout called `create` and `release`
once for a trajectory, whose id was the instance id. Both work here.

An infrastructure failure must not become text that a model is trained on, and verl's `ToolAgentLoop` turns every
exception of a tool into such text. So `execute` does not raise one: it answers with a text that says nothing of the
cause, and leaves the cause in `agent_data.extra_fields["fairbox_infra"]` and in the call's metrics. verl's loop goes on
with that trajectory all the same; `FairboxAgentLoop` masks it.
"""

from __future__ import annotations

import contextlib
import logging
import uuid
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fairbox.errors import FairboxError
from rollout.interop.settings import InterpreterSettings, from_mapping
from rollout.interop.shared import shared_interpreter
from rollout.tools.base import ToolOutcome, ToolResponse
from rollout.tools.code_interpreter import CodeInterpreter

__all__ = ["INFRA_FIELD", "PlainCodeInterpreter", "PlainResponse"]

_LOG = logging.getLogger("fairbox.rollout")
INFRA_FIELD = "fairbox_infra"
"""Key of `agent_data.extra_fields` that is set when the service failed a call: a text."""
NOT_AVAILABLE = "The tool is not available."
CONFIG = "config of the code interpreter"
"""What errors call the mapping in the YAML file."""


@dataclass(frozen=True, slots=True)
class PlainResponse:
    """What verl reads of a tool's answer. `image` and `video` are always None."""

    text: str | None = None
    image: None = None
    video: None = None


class PlainCodeInterpreter:
    """`config` is the tool's mapping in the YAML file, `tool_schema` its schema there.

    Making one checks the settings and opens nothing: verl does so on its driver too. Raises ConfigError.
    """

    def __init__(self, config: Mapping[str, Any], tool_schema: Any) -> None:
        self.config = dict(config)
        self.settings = from_mapping(InterpreterSettings, self.config, CONFIG)
        self.tool_schema = tool_schema
        self.name: str = tool_schema.function.name
        self._seen: set[str] = set()
        """Trajectories that have called and have not been released."""
        self._ended: list[str] = []
        """Those of them that verl has dropped."""

    async def create(self, instance_id: str | None = None, **kwargs: Any) -> tuple[str, PlainResponse]:
        """(id of the instance, an empty answer). `create_kwargs` and `ground_truth` are accepted and not needed."""
        return instance_id or uuid.uuid4().hex, PlainResponse()

    async def execute(
        self, instance_id: str, parameters: dict[str, Any], **kwargs: Any
    ) -> tuple[PlainResponse, float | None, dict[str, Any]]:
        """(answer, None: a call is worth nothing by itself, metrics: `outcome`, `wait_s`, `run_s`, `truncated`)."""
        agent_data = kwargs.get("agent_data")
        trajectory_id = self._trajectory(agent_data) or instance_id
        try:
            interpreter = await shared_interpreter(self.settings)
            await self._release_ended(interpreter)
            response = await _answer(interpreter, trajectory_id, parameters)
        except Exception as error:  # the boundary to verl, which makes text for the model of whatever is raised
            if not isinstance(error, FairboxError):
                _LOG.exception("a call of trajectory %s failed", trajectory_id)
            fields = getattr(agent_data, "extra_fields", None)
            if isinstance(fields, dict):
                fields[INFRA_FIELD] = str(error)
            return PlainResponse(NOT_AVAILABLE), None, {"outcome": str(ToolOutcome.INFRA), "error": str(error)}
        metrics = {
            "outcome": str(response.outcome),
            "wait_s": response.wait_s,
            "run_s": response.run_s,
            "truncated": response.truncated,
        }
        return PlainResponse(response.text), None, metrics

    async def calc_reward(self, instance_id: str, **kwargs: Any) -> float:
        """0.0: running code is worth nothing by itself."""
        return 0.0

    async def release(self, instance_id: str, **kwargs: Any) -> None:
        """Ends what the instance holds. Idempotent, and right for ids that nothing was done with. Raises nothing: verl
        would end a whole batch for it."""
        try:
            interpreter = await shared_interpreter(self.settings)
            await interpreter.release(instance_id)
            await self._release_ended(interpreter)
        except FairboxError as error:
            _LOG.warning("instance %s could not be released: %s", instance_id, error)

    def _trajectory(self, agent_data: Any) -> str | None:
        """The trajectory that a call belongs to; from its first call on its end is watched for."""
        trajectory_id = getattr(agent_data, "request_id", None)
        if not isinstance(trajectory_id, str):
            return None
        if trajectory_id not in self._seen:
            with contextlib.suppress(TypeError):  # an object that can't be watched: its state ends when it is idle
                weakref.finalize(agent_data, self._ended.append, trajectory_id).atexit = False
                self._seen.add(trajectory_id)
        return trajectory_id

    async def _release_ended(self, interpreter: CodeInterpreter) -> None:
        while self._ended:
            trajectory_id = self._ended.pop()
            self._seen.discard(trajectory_id)
            await interpreter.release(trajectory_id)


async def _answer(interpreter: CodeInterpreter, trajectory_id: str, parameters: Any) -> ToolResponse:
    """What the toolbox does around a tool: arguments are the model's, and may be anything."""
    if not isinstance(parameters, Mapping):
        return ToolResponse("Error: the arguments must be a JSON object.", ToolOutcome.BAD_ARGUMENTS)
    problem = interpreter.schema.problem(parameters)
    if problem is not None:
        return ToolResponse(f"Error: {problem}.", ToolOutcome.BAD_ARGUMENTS)
    return await interpreter.execute(trajectory_id, parameters)
