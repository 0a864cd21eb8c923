"""Single programs, and their compilers: each in a sandbox of its own, handed over while the lease is bound."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from executor_service.images.table import Images
from executor_service.languages import LANGUAGES
from executor_service.model import Cause, ExecutionResult, Outcome, RunRequest
from executor_service.programs.compiler import Build, Compiler, NotCompiled
from executor_service.programs.plans import Hold, Planner, mounted
from executor_service.programs.verdict import judge
from executor_service.runs.backends import Execution
from executor_service.sandbox.checkout import SandboxRun
from executor_service.sandbox.pool import SandboxPool
from executor_service.sandbox.report import NO_END_S, Killed, Mode, Plan, Report, SandboxFailure
from fairbox.clock import Clock
from fairbox.errors import FieldError, FieldErrors


class Programs:
    """The `Backend` for requests without a session."""

    def __init__(
        self, boxes: SandboxPool, planner: Planner, compiler: Compiler, hold: Hold, images: Images, clock: Clock
    ) -> None:
        self._boxes = boxes
        self._planner = planner
        self._compiler = compiler
        self._hold = hold
        self._images = images
        self._clock = clock

    async def perform(self, attempt: Execution) -> ExecutionResult:
        admitted = self._clock.now()
        built = await self.build(attempt)
        if isinstance(built, ExecutionResult):
            return built
        build, compiled_s = built
        # What the compiler ran is no set-up; waiting for that of another run is.
        return await self._run(attempt, build, admitted + compiled_s)

    async def build(self, attempt: Execution) -> tuple[Build, float] | ExecutionResult:
        """The program of the request, compiled if its language is, and seconds that its compiler ran for it; or the
        result of a request whose program can't be had."""
        if not LANGUAGES[attempt.request.language].compile:
            return Build(), 0.0
        admitted = self._clock.now()
        ran_s = 0.0

        async def compiled(plan: Plan) -> Report:
            nonlocal ran_s
            async with self._boxes.take(plan) as sandbox:
                await allow(attempt, sandbox)
                report = await sandbox.run()
            ran_s = report.wall_s
            return report

        try:
            build = await self._compiler.build(attempt.request, compiled)
        except SandboxFailure as failure:
            return attempt.failed(failure)
        except NotCompiled as stopped:
            return attempt.result(stopped.outcome, stopped.cause, stopped.message)
        if not build.message:
            return build, ran_s
        # It may come from the cache: an answer that costs nothing needs a valid lease all the same.
        await attempt.begin()
        return attempt.result(
            Outcome.COMPILE_ERROR,
            Cause.POLICY,
            build.message,
            compilation=build.compilation,
            setup_time_s=self._clock.now() - admitted - ran_s,
        )

    @asynccontextmanager
    async def take(self, request: RunRequest, build: Build, *, talks: bool = False) -> AsyncIterator[SandboxRun]:
        """A sandbox that is ready to run the program, with its workspace. `talks`: it is fed while it runs, and whoever
        feeds it keeps its wall time."""
        with self._hold(request.workspace_id, request.tenant, request.limits) as workspace:
            plan = mounted(self._planner.plan(request, build.made), workspace, read_only=request.workspace_read_only)
            if talks:
                plan = replace(plan, talks=True, limits=replace(plan.limits, wall_time_s=NO_END_S))
            async with self._boxes.take(plan) as sandbox:
                yield sandbox

    async def _run(self, attempt: Execution, build: Build, admitted: float) -> ExecutionResult:
        # Held until the sandbox is gone: longer than the call, which is answered before.
        request = attempt.request
        if request.image:
            async with self._images.hold(request.image, request.tenant) as image:
                return await self._run_plan(attempt, self._planner.image_plan(request, image), build, admitted)
        with self._hold(request.workspace_id, request.tenant, request.limits) as workspace:
            plan = mounted(self._planner.plan(request, build.made), workspace, read_only=request.workspace_read_only)
            if plan.mode is Mode.MAIN:
                attempt.profile = plan.profile
            return await self._run_plan(attempt, plan, build, admitted)

    async def _run_plan(self, attempt: Execution, plan: Plan, build: Build, admitted: float) -> ExecutionResult:
        answered: ExecutionResult | None = None
        try:
            async with self._boxes.take(plan) as sandbox:
                await allow(attempt, sandbox)
                setup_s = self._clock.now() - admitted
                report = await sandbox.run(attempt.observe)
                answered = judged(attempt, report, compilation=build.compilation, setup_time_s=setup_s)
                attempt.answer(answered)
        except SandboxFailure as failure:
            if answered is not None:
                raise
            if failure.stage == "user":
                attempt.started = False
                raise no_user(attempt.request.user, f"image {attempt.request.image!r}", failure) from None
            if plan.image is not None and failure.stage == "exec":
                attempt.started = False
                lacking = f"is {attempt.request.image!r}, in which {plan.argv[0]} can't be started: {failure}"
                raise FieldErrors([FieldError("image", lacking)]) from None
            return attempt.failed(failure, compilation=build.compilation)
        return answered


def no_user(user: str, where: str, failure: SandboxFailure) -> FieldErrors:
    """The error for a user whom an image does not know; empty: it is the image's own."""
    return FieldErrors([FieldError("user", f"is {user!r}, which can't be had in {where}: {failure}")])


def judged(attempt: Execution, report: Report, **facts: object) -> ExecutionResult:
    """The result of a program that has run."""
    outcome, cause, message = judge(report, attempt.request.limits)
    return attempt.result(
        outcome,
        cause,
        message,
        exit_code=128 + report.signal if report.signal else report.code,
        signal=report.signal,
        stdout=report.stdout,
        stderr=report.stderr,
        files=report.files,
        wall_time_s=report.wall_s,
        cpu_time_s=report.cpu_s,
        peak_memory_bytes=report.peak_bytes,
        **facts,
    )


async def allow(attempt: Execution, sandbox: SandboxRun) -> None:
    """The sandbox is ready; when this returns, its lease is bound, and the program may run."""
    if attempt.claim.waits:
        sandbox.send_ahead()
    await attempt.begin(lambda: sandbox.kill(Killed.LAPSED))
    sandbox.hold_lease()
