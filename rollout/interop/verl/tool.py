"""The code interpreter as a `BaseTool` of verl: `class_name: rollout.interop.verl.tool.CodeInterpreterTool`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rollout.interop.needs import needs
from rollout.interop.settings import InterpreterSettings, from_mapping
from rollout.interop.shared import interpreter_schema
from rollout.interop.verl.plain import CONFIG, PlainCodeInterpreter

with needs("verl", "0.9.1", "pip install --no-deps verl==0.9.1"):
    from verl.tools.base_tool import BaseTool
    from verl.tools.schemas import OpenAIFunctionToolSchema, ToolResponse

__all__ = ["CodeInterpreterTool"]


class CodeInterpreterTool(BaseTool):  # type: ignore[misc]
    """verl's tool. Without a `tool_schema` in the YAML file it has its own.

    `execute` returns (ToolResponse, None, metrics); see `PlainCodeInterpreter`, which does the work.
    """

    def __init__(self, config: Mapping[str, Any], tool_schema: OpenAIFunctionToolSchema | None = None) -> None:
        super().__init__(dict(config), tool_schema)
        self._plain = PlainCodeInterpreter(config, self.tool_schema)

    def get_openai_tool_schema(self) -> OpenAIFunctionToolSchema:
        settings = from_mapping(InterpreterSettings, self.config, CONFIG)
        return OpenAIFunctionToolSchema.model_validate(interpreter_schema(settings).openai())

    async def create(self, instance_id: str | None = None, **kwargs: Any) -> tuple[str, ToolResponse]:
        instance_id, _ = await self._plain.create(instance_id, **kwargs)
        return instance_id, ToolResponse()

    async def execute(
        self, instance_id: str, parameters: dict[str, Any], **kwargs: Any
    ) -> tuple[ToolResponse, float | None, dict[str, Any]]:
        response, reward, metrics = await self._plain.execute(instance_id, parameters, **kwargs)
        return ToolResponse(text=response.text), reward, metrics

    async def calc_reward(self, instance_id: str, **kwargs: Any) -> float:
        return await self._plain.calc_reward(instance_id, **kwargs)

    async def release(self, instance_id: str, **kwargs: Any) -> None:
        await self._plain.release(instance_id, **kwargs)
