"""The code interpreter as a `BaseTool` of verl: `class_name: rollout.interop.verl.tool.CodeInterpreterTool`.

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

import logging
import weakref
from collections.abc import Mapping
from typing import Any

from fairbox.errors import FairboxError
from rollout.interop.needs import needs
from rollout.interop.settings import InterpreterSettings, from_mapping
from rollout.interop.shared import SharedTools
from rollout.tools.base import ToolOutcome
from rollout.tools.code import CodeInterpreter
from rollout.tools.formats.calls import checked_call

with needs("verl", "0.9.1", "pip install --no-deps verl==0.9.1"):
    from verl.tools.base_tool import BaseTool
    from verl.tools.schemas import OpenAIFunctionToolSchema, ToolResponse

_LOG = logging.getLogger("fairbox.rollout")
INFRA_FIELD = "fairbox_infra"
"""Key of `agent_data.extra_fields` that is set when the service failed a call: a text."""
NOT_AVAILABLE = "The tool is not available."


class CodeInterpreterTool(BaseTool):  # type: ignore[misc]
    """`config` is the tool's mapping in the YAML file, `tool_schema` its schema there; without one it has its own.

    Making one checks the settings and opens nothing: verl does so on its driver too. Raises ConfigError.
    """

    def __init__(self, config: Mapping[str, Any], tool_schema: OpenAIFunctionToolSchema | None = None) -> None:
        super().__init__(dict(config), tool_schema)
        ours = {name: value for name, value in config.items() if name != "type"}  # that is for verl's tool registry
        self._tools = SharedTools(from_mapping(InterpreterSettings, ours, "config of the code interpreter"))
        self._seen: set[str] = set()
        """Trajectories that have called and have not been released."""
        self._ended: list[str] = []
        """Trajectories of `_seen` that verl has dropped."""

    def get_openai_tool_schema(self) -> OpenAIFunctionToolSchema:
        return OpenAIFunctionToolSchema.model_validate(CodeInterpreter.default_schema.openai())

    async def execute(
        self, instance_id: str, parameters: dict[str, Any], **kwargs: Any
    ) -> tuple[ToolResponse, float | None, dict[str, Any]]:
        """(answer, None: a call is worth nothing by itself, metrics: `outcome`, `wait_s`, `run_s`, `truncated`)."""
        agent_data = kwargs.get("agent_data")
        trajectory_id = self._trajectory(agent_data) or instance_id
        # A file may give the tool another name; the arguments are the model's, and may be anything.
        call = checked_call({"name": CodeInterpreter.default_schema.name, "arguments": parameters}, str(parameters))
        try:
            await self._release_ended()
            (response,) = await self._tools.answer(trajectory_id, [call])
        except Exception as error:  # the boundary to verl, which makes text for the model of whatever is raised
            if not isinstance(error, FairboxError):
                _LOG.exception("a call of trajectory %s failed", trajectory_id)
            fields = getattr(agent_data, "extra_fields", None)
            if isinstance(fields, dict):
                fields[INFRA_FIELD] = str(error)
            return ToolResponse(text=NOT_AVAILABLE), None, {"outcome": str(ToolOutcome.INFRA), "error": str(error)}
        metrics = {
            "outcome": str(response.outcome),
            "wait_s": response.wait_s,
            "run_s": response.run_s,
            "truncated": response.truncated,
        }
        return ToolResponse(text=response.text), None, metrics

    async def release(self, instance_id: str, **kwargs: Any) -> None:
        """Ends what the instance holds. Idempotent, and right for ids that nothing was done with. Raises nothing: verl
        would end a whole batch for it."""
        try:
            await self._tools.release(instance_id)
            await self._release_ended()
        except FairboxError as error:
            _LOG.warning("instance %s could not be released: %s", instance_id, error)

    def _trajectory(self, agent_data: Any) -> str | None:
        """The trajectory that a call belongs to; from its first call on its end is watched for. None where there is
        none, or its end can't be watched for: then the call stands for itself."""
        trajectory_id = getattr(agent_data, "request_id", None)
        if not isinstance(trajectory_id, str):
            return None
        if trajectory_id not in self._seen:
            try:
                weakref.finalize(agent_data, self._ended.append, trajectory_id).atexit = False
            except TypeError:
                return None
            self._seen.add(trajectory_id)
        return trajectory_id

    async def _release_ended(self) -> None:
        while self._ended:
            trajectory_id = self._ended.pop()
            self._seen.discard(trajectory_id)
            await self._tools.release(trajectory_id)
