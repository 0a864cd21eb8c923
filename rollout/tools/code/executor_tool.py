"""The common part of tools that run a text at the executor: clients, programs or sessions, answers.

Invariants: what the model could not have caused is an InfraError; no output is cut without the text saying so; when the
block is left, no session of a trajectory is alive. One object serves all trajectories of a process.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar, Self

from fairbox.clock import Clock, MonotonicClock
from limiter import LimiterClient
from rollout.cleanup import to_its_end
from rollout.tools.base import Tool, ToolOutcome, ToolResponse
from rollout.tools.breaker import ServiceGate
from rollout.tools.code.client import BadProgram, CodeClient, ToolServices
from rollout.tools.code.program_text import describe
from rollout.tools.code.runner import CodeRunner, Runner
from rollout.tools.code.sessions import SessionRunner
from rollout.tools.code.settings import ExecutorToolConfig
from rollout.tools.schema import ToolSchema

NEW_SESSION = "[The previous session ended; this is a new one. Variables and files from before are gone.]"
"""Said before the answer of the first call after the model's own code has ended its session."""


class ExecutorTool(Tool):
    """`async with Tool(config, executor=..., limiter=...) as tool`. The targets are `host:port`.

    With `services` it uses clients that are open already, and the targets are not looked at. `schema` replaces the
    tool's own; it must have the parameters that the tool reads.
    """

    config_type: ClassVar[type[ExecutorToolConfig]]

    def __init__(
        self,
        config: ExecutorToolConfig,
        *,
        executor: str = "",
        limiter: str = "",
        services: ToolServices | None = None,
        schema: ToolSchema | None = None,
        clock: Clock | None = None,
    ) -> None:
        config.validate()
        super().__init__(config, schema=schema)
        self.parallel = config.mode == "program"  # calls of a session run one after another
        self._settings = config
        self._clock = clock or MonotonicClock()
        self._shared = services
        self._targets = (executor, limiter)
        self._stack = contextlib.AsyncExitStack()
        self._opened: Runner | None = None
        self._gate = ServiceGate(self._clock, patience_s=config.outage_timeout)

    @classmethod
    def from_config(cls, config: ExecutorToolConfig, services: ToolServices, schema: ToolSchema | None) -> Self:
        """As the registry makes it, with the clients that all tools share."""
        return cls(config, services=services, schema=schema)

    async def __aenter__(self) -> Self:
        async with contextlib.AsyncExitStack() as stack:
            services = self._shared
            if services is None:
                executor, target = self._targets
                services = await stack.enter_async_context(ToolServices(executor=executor, limiter=target))
            limiter = await services.open_limiter() if self._settings.enable_global_rate_limit else None
            self._opened = await self._open_runner(services, limiter, stack)
            self._stack = stack.pop_all()
        return self

    async def _open_runner(
        self, services: ToolServices, limiter: LimiterClient | None, stack: contextlib.AsyncExitStack
    ) -> Runner:
        """Opens what code runs with, on `stack` unless it is shared. `limiter` None: without the global limit."""
        client = CodeClient(await services.open_executor(), self._settings, limiter=limiter, clock=self._clock)
        return CodeRunner(client) if self._settings.mode == "program" else SessionRunner(client)

    async def __aexit__(self, *_: object) -> None:
        runner, self._opened = self._opened, None
        try:
            if runner is not None:
                await to_its_end(runner.close())
        finally:
            await self._stack.aclose()

    repeatable = True
    """Effects of a program go with its sandbox or its session, and the next one begins as that did."""

    @property
    def stateful(self) -> bool:
        """Sessions are; a program starts from nothing, or from its workspace as it was prepared."""
        return self._settings.mode != "program"

    @property
    def waiting_to_begin(self) -> int:
        """Trajectories that wait until the service answers."""
        return self._gate.waiting

    async def create(self, trajectory_id: str, **options: Any) -> None:
        """Prepares the workspace or the image if the task names one (`workspace=...`, `image=...`); other options are
        not looked at."""
        with self._gate.noted(answers=False):
            await self._runner().create(trajectory_id, options)

    async def ready(self) -> None:
        """Returns when the service answers: at once, unless its last call failed. Raises InfraError."""
        await self._gate.passed(self._runner().probe)

    async def branch(self, trajectory_id: str, branches: Sequence[str]) -> None:
        """Forks the trajectory's session; programs have nothing to fork. Raises BranchRefused and InfraError."""
        await self._runner().branch(trajectory_id, branches)

    async def release(self, trajectory_id: str) -> None:
        """Ends the trajectory's session, where it has one. Idempotent."""
        if self._opened is not None:
            await self._opened.release(trajectory_id)

    async def _run(
        self, trajectory_id: str, code: str, time_limit_s: float | None, *, show_exit_code: bool
    ) -> ToolResponse:
        config = self._settings
        timeout = min(config.default_timeout, time_limit_s or config.default_timeout)
        try:
            with self._gate.noted():
                found = await self._runner().run(trajectory_id, code, timeout)
        except BadProgram as error:
            return ToolResponse(f"Error: {error}.", ToolOutcome.BAD_ARGUMENTS)
        shown = describe(
            found.result,
            max_chars=config.max_output_chars,
            show_exit_code=show_exit_code,
            show_message=config.mode == "shell",
        )
        text = f"{NEW_SESSION}\n{shown.text}" if found.fresh else shown.text
        return replace(shown, text=text, wait_s=found.wait_s, run_s=found.run_s)

    def _runner(self) -> Runner:
        if self._opened is None:
            raise RuntimeError(f"{type(self).__name__} is used outside its `async with` block")
        return self._opened


def text_problem(name: str, text: str) -> str | None:
    """Says what keeps an argument from being a program, for the model; None if nothing does."""
    if not text.strip():
        return f'the argument "{name}" is empty'
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return f'the argument "{name}" holds half a surrogate pair at position {error.start}, which is no character'
    return None
