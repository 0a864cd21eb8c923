"""`code_interpreter`: runs the model's code in the sandbox, under the cluster's limit.

Invariants: each program runs under a lease of the limiter where the global limit is on; the model chooses neither
timeout nor language; what it could not have caused is an InfraError; no output is cut without the text saying so. One
object serves all trajectories of a process over one channel each to limiter and executor. It keeps no state between
calls: each program starts in a sandbox of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import uuid
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from executor_service import Cause, ExecutionResult, ExecutorClient, ExecutorError, InvalidRequest, LeaseRefused, Limits
from fairbox.clock import Clock, MonotonicClock
from fairbox.config import setting
from fairbox.errors import ConfigError, FairboxError
from limiter import LeaseLike, LimiterClient
from rollout.tools.base import InfraError, ToolOutcome, ToolResponse
from rollout.tools.cooldown import Cooldown
from rollout.tools.program_text import describe
from rollout.tools.schema import ParameterSchema, ToolSchema

__all__ = ["CodeInterpreter", "CodeInterpreterConfig"]

BUCKET = "code"
"""The limiter's bucket for programs."""
LONGEST_S = 86_400.0
"""Most seconds of any wait here: the limiter accepts no longer ones."""
_CALL_ALLOWANCE_S = 30.0
"""What setting up the sandbox and the way there and back may take beyond queue and program."""
_RETRY_AFTER_S = 0.3
"""Before the second attempt; doubled for each further one."""


@dataclass(frozen=True)
class CodeInterpreterConfig:
    """Settings of the tool. The first six are those of verl's SandboxFusionTool."""

    num_workers: int = setting(10, help="Programs of this process that may wait or run at once; from 1.")
    rate_limit: int = setting(10, help="Programs that may run at once over all processes; from 1.")
    default_timeout: float = setting(30.0, help="Wall time of one program, seconds; the model can't change it.")
    default_language: str = setting("python", help="Language of the code; the model can't change it.")
    enable_global_rate_limit: bool = setting(
        True, help="Run under leases of the limiter; otherwise rate_limit holds within this process only."
    )
    sandbox_fusion_url: str | None = setting(None, help="Not part of this version; leave it unset.")
    queue_timeout: float = setting(120.0, help="Longest wait for a worker, then for a lease, seconds.")
    max_output_chars: int = setting(1000, help="Characters of a program's output that the model sees; from 16.")
    infra_attempts: int = setting(2, help="Attempts of one call while the service fails; from 1.")

    def validate(self) -> None:
        """ConfigError for what types can't say."""
        for name, least in (("num_workers", 1), ("rate_limit", 1), ("max_output_chars", 16), ("infra_attempts", 1)):
            if getattr(self, name) < least:
                raise ConfigError(f"tool.{name} is {getattr(self, name)}, must be at least {least}")
        for name in ("default_timeout", "queue_timeout"):
            if not 0 < getattr(self, name) <= LONGEST_S:
                raise ConfigError(
                    f"tool.{name} is {getattr(self, name)}, must be above 0 and at most {LONGEST_S:.0f} seconds"
                )
        if self.sandbox_fusion_url is not None:
            raise ConfigError(
                f"tool.sandbox_fusion_url is {self.sandbox_fusion_url!r}, but forwarding to another sandbox service is "
                "not part of this version; leave it unset, and code runs in fairbox's own executor"
            )


class CodeInterpreter:
    """`async with CodeInterpreter(config, executor=..., limiter=...) as tool`. The targets are `host:port`."""

    def __init__(
        self, config: CodeInterpreterConfig, *, executor: str, limiter: str, clock: Clock | None = None
    ) -> None:
        config.validate()
        self._config = config
        self._clock = clock or MonotonicClock()
        self._executor = ExecutorClient(executor)
        self._limiter = LimiterClient(limiter) if config.enable_global_rate_limit else None
        workers = config.num_workers if self._limiter else min(config.num_workers, config.rate_limit)
        self._workers = asyncio.Semaphore(workers)
        self._stack = contextlib.AsyncExitStack()
        self._cooldown = Cooldown()
        self.schema = ToolSchema(
            name="code_interpreter",
            description="A tool for executing code.",
            parameters={"code": ParameterSchema("string", "The code to execute.")},
            required=("code",),
        )

    async def __aenter__(self) -> Self:
        async with contextlib.AsyncExitStack() as stack:
            await stack.enter_async_context(self._executor)
            if self._limiter is not None:
                await stack.enter_async_context(self._limiter)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    async def create(self, trajectory_id: str, **options: Any) -> None:
        """Nothing to prepare: each program starts afresh."""

    async def calc_reward(self, trajectory_id: str) -> float | None:
        """None: running code is worth nothing by itself."""
        return None

    async def release(self, trajectory_id: str) -> None:
        """Nothing to release."""

    async def execute(
        self, trajectory_id: str, arguments: Mapping[str, Any], *, time_limit_s: float | None = None
    ) -> ToolResponse:
        """Runs `arguments["code"]`. Raises InfraError when the service failed in every attempt."""
        code: str = arguments["code"]
        problem = _code_problem(code)
        if problem is not None:
            return ToolResponse(f"Error: {problem}.", ToolOutcome.BAD_ARGUMENTS)
        timeout = min(self._config.default_timeout, time_limit_s or self._config.default_timeout)
        refused: LeaseLike | None = None
        for attempt in range(1, self._config.infra_attempts + 1):
            try:
                return await self._attempt(trajectory_id, code, timeout, refused)
            except InfraError as error:
                if attempt == self._config.infra_attempts:
                    raise
                refused = error.lease if isinstance(error, _LeaseRefusedError) else None
            # Again, under a new request_id and lease. Safe: a program reaches nothing outside its own sandbox, and
            # nobody has seen a result of the failed attempt.
            await asyncio.sleep(_RETRY_AFTER_S * 2 ** (attempt - 1))
        raise AssertionError("the last attempt returns or raises")

    async def _attempt(self, trajectory_id: str, code: str, timeout: float, refused: LeaseLike | None) -> ToolResponse:
        """`refused`: the lease of an attempt before, that could not be bound."""
        lease: LeaseLike | None = None
        began = started = self._clock.now()
        try:
            async with self._slot(refused) as lease:
                started = self._clock.now()
                result = await self._executor.execute(
                    code,
                    language=self._config.default_language,
                    limits=Limits(wall_time_s=timeout),
                    lease=lease,
                    request_id=uuid.uuid4().hex,
                    tenant=trajectory_id,
                    timeout=timeout + self._config.queue_timeout + _CALL_ALLOWANCE_S,
                )
                ended = self._clock.now()
        except InvalidRequest as error:
            if all(field.field == "code" for field in error.fields):
                text = "; ".join(f"the code {field.problem}" for field in error.fields)
                return ToolResponse(f"Error: {text}.", ToolOutcome.BAD_ARGUMENTS)
            raise InfraError(str(error)) from error
        except FairboxError as error:
            if isinstance(error, ExecutorError):
                self._cooldown.failed(started, self._clock.now())
            if isinstance(error, LeaseRefused) and lease is not None:
                raise _LeaseRefusedError(str(error), lease) from error
            raise InfraError(str(error)) from error
        if result.cause is Cause.INFRA:
            self._cooldown.failed(started, self._clock.now())
            raise InfraError(f"the executor reports {result.outcome}: {result.message}")
        self._cooldown.succeeded()
        return self._response(result, wait_s=started - began, run_s=ended - started)

    def _response(self, result: ExecutionResult, *, wait_s: float, run_s: float) -> ToolResponse:
        shown = describe(result, max_chars=self._config.max_output_chars)
        return ToolResponse(
            text=shown.text,
            outcome=shown.outcome,
            truncated=shown.truncated,
            total_bytes=shown.total_bytes,
            wait_s=wait_s + result.queue_time_s,
            run_s=max(0.0, run_s - result.queue_time_s),
        )

    @contextlib.asynccontextmanager
    async def _slot(self, refused: LeaseLike | None) -> AsyncIterator[LeaseLike | None]:
        """A worker of this process and, with the global limit, a lease. Raises InfraError when the wait is too long."""
        limit = self._config.queue_timeout
        try:
            async with asyncio.timeout(limit):
                await self._workers.acquire()
        except TimeoutError:
            raise InfraError(f"waited {limit:g} s for one of {self._config.num_workers} workers") from None
        try:
            # Before the lease, which nobody else could use meanwhile. Spread, so that not all try again at once.
            await asyncio.sleep(self._cooldown.pause(self._clock.now()) * random.uniform(0.5, 1.0))  # noqa: S311
            if self._limiter is None:
                yield None
            else:
                async with self._limiter.lease(bucket=BUCKET, queue_timeout=limit, instead_of=refused) as lease:
                    yield lease
        finally:
            self._workers.release()


class _LeaseRefusedError(InfraError):
    """No executor could bind the lease."""

    def __init__(self, message: str, lease: LeaseLike) -> None:
        super().__init__(message)
        self.lease = lease


def _code_problem(code: str) -> str | None:
    """What keeps a text from being a program, for the model."""
    if not code.strip():
        return 'the argument "code" is empty'
    try:
        code.encode()
    except UnicodeEncodeError as error:
        return f'the argument "code" holds half a surrogate pair at position {error.start}, which is no character'
    return None
