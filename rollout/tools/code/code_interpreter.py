"""`code_interpreter`: runs the model's code in the sandbox, under the cluster's limit.

Invariants: each program or cell runs under a lease of the limiter where the global limit is on; the model chooses
neither timeout nor language; what it could not have caused is an InfraError; no output is cut without the text saying
so. In mode `program` it keeps no state between calls; in mode `session` a trajectory has one Python interpreter, from
its first call to `release`, and calls are its cells: the value of the last expression is displayed. With
`sandbox_fusion_url` programs run there, and no executor is asked.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fairbox.config import setting
from fairbox.errors import ConfigError
from fairbox.extras import require
from limiter import LimiterClient
from rollout.tools.base import ToolOutcome, ToolResponse
from rollout.tools.code.client import ToolServices
from rollout.tools.code.executor_tool import ExecutorTool, text_problem
from rollout.tools.code.runner import Runner
from rollout.tools.code.sandbox_fusion_wire import LONGEST_TIMEOUT_S, hold_s, url_problem
from rollout.tools.code.settings import ExecutorToolConfig
from rollout.tools.schema import ParameterSchema, ToolSchema


@dataclass(frozen=True)
class CodeInterpreterConfig(ExecutorToolConfig):
    """Settings of the tool, under the names of verl's SandboxFusionTool where it has them."""

    default_language: str = setting("python", help="Language of the code; the model can't change it.")
    sandbox_fusion_url: str | None = setting(
        None,
        help="Run code at this SandboxFusion URL, like http://HOST:8080/run_code, in place of the executor.",
    )

    @property
    def language(self) -> str:
        return self.default_language

    @property
    def needs_executor(self) -> bool:
        return self.sandbox_fusion_url is None

    @property
    def longest_hold_s(self) -> float:
        return 0.0 if self.needs_executor or not self.enable_global_rate_limit else hold_s(self.default_timeout)

    def validate(self, path: str = "tool") -> None:
        """ConfigError for what types can't say. `path` is where the settings stand."""
        super().validate(path)
        if self.mode == "shell":
            raise ConfigError(f"{path}.mode is 'shell', must be program or session: bash alone has shells")
        if self.mode == "session" and self.default_language != "python":
            raise ConfigError(
                f"{path}.default_language is {self.default_language!r}, must be python where mode is session"
            )
        if self.sandbox_fusion_url is not None:
            self._validate_url(path, self.sandbox_fusion_url)

    def _validate_url(self, path: str, url: str) -> None:
        problem = url_problem(url)
        if problem is not None:
            raise ConfigError(f"{path}.sandbox_fusion_url is {url!r}, {problem}")
        if self.mode != "program":
            raise ConfigError(
                f"{path}.mode is {self.mode!r}, must be program with sandbox_fusion_url, which keeps no state"
            )
        if self.default_timeout > LONGEST_TIMEOUT_S:
            raise ConfigError(
                f"{path}.default_timeout is {self.default_timeout:g}, must be at most {LONGEST_TIMEOUT_S:g} with "
                "sandbox_fusion_url"
            )
        require(f"{path}.sandbox_fusion_url", "gateway", "aiohttp")


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

    async def _open_runner(
        self, services: ToolServices, limiter: LimiterClient | None, stack: contextlib.AsyncExitStack
    ) -> Runner:
        settings = self._settings
        assert isinstance(settings, CodeInterpreterConfig)
        if settings.sandbox_fusion_url is None:
            return await super()._open_runner(services, limiter, stack)
        from rollout.tools.code.sandbox_fusion import SandboxFusionClient, SandboxFusionRunner

        client = SandboxFusionClient(settings.sandbox_fusion_url, settings, limiter=limiter, clock=self._clock)
        await stack.enter_async_context(client)
        await client.check_limiter()
        return SandboxFusionRunner(client)
