"""`code_interpreter`: runs the model's code in the sandbox, under the cluster's limit.

Invariants: each program or cell runs under a lease of the limiter where the global limit is on; the model chooses
neither timeout nor language; what it could not have caused is an InfraError; no output is cut without the text saying
so. In mode `program` it keeps no state between calls; in mode `session` a trajectory has one Python interpreter, from
its first call to `release`, and calls are its cells: the value of the last expression is displayed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fairbox.config import setting
from fairbox.errors import ConfigError
from rollout.tools.base import ToolOutcome, ToolResponse
from rollout.tools.executor_settings import ExecutorToolConfig
from rollout.tools.executor_tool import ExecutorTool, text_problem
from rollout.tools.schema import ParameterSchema, ToolSchema


@dataclass(frozen=True)
class CodeInterpreterConfig(ExecutorToolConfig):
    """Settings of the tool, under the names of verl's SandboxFusionTool where it has them."""

    default_language: str = setting("python", help="Language of the code; the model can't change it.")
    sandbox_fusion_url: str | None = setting(None, help="Not part of this version; leave it unset.")

    @property
    def language(self) -> str:
        return self.default_language

    def validate(self, path: str = "tool") -> None:
        """ConfigError for what types can't say. `path` is where the settings stand."""
        super().validate(path)
        if self.mode == "session" and self.default_language != "python":
            raise ConfigError(
                f"{path}.default_language is {self.default_language!r}, must be python where mode is session"
            )
        if self.sandbox_fusion_url is not None:
            raise ConfigError(
                f"{path}.sandbox_fusion_url is {self.sandbox_fusion_url!r}, but forwarding to another sandbox service "
                "is not part of this version; leave it unset, and code runs in fairbox's own executor"
            )


class CodeInterpreter(ExecutorTool):
    """`async with CodeInterpreter(config, executor=..., limiter=...) as tool`. The targets are `host:port`."""

    config_type = CodeInterpreterConfig
    default_schema = ToolSchema(
        name="code_interpreter",
        description="A tool for executing code.",
        parameters={"code": ParameterSchema("string", "The code to execute.")},
        required=("code",),
    )

    async def execute(
        self, trajectory_id: str, arguments: Mapping[str, Any], *, time_limit_s: float | None = None
    ) -> ToolResponse:
        """Runs `arguments["code"]`. Raises InfraError when the service failed in every attempt."""
        code: str = arguments["code"]
        problem = text_problem("code", code)
        if problem is not None:
            return ToolResponse(f"Error: {problem}.", ToolOutcome.BAD_ARGUMENTS)
        return await self._run(trajectory_id, code, time_limit_s, show_exit_code=False)
