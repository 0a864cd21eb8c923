"""Client of the execution tier: `async with ExecutorClient(target) as executor: await executor.execute(code)`.

Invariants: every call has a deadline; a program's failure is a result and never an exception; an exception is an
ExecutorError and says that there is no result. One client serves any number of concurrent calls of one event loop.
"""

from __future__ import annotations

import asyncio
import hashlib
import uuid
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from types import TracebackType

from executor_service.client.balance import ServerInfo
from executor_service.client.calls import Calls
from executor_service.client.images import ImageCalls
from executor_service.client.program import Program, limits_with, program_to_proto
from executor_service.client.sessions import SessionCalls
from executor_service.client.streams import OutputChunk, stream_execution, stream_verification
from executor_service.errors import ExecutorError, InvalidRequest
from executor_service.grading.convert import case_to_proto, style_of, verify_from_proto
from executor_service.grading.model import Case, CaseResult, Checker, Comparison, Tolerance, VerifyResult
from executor_service.model import ExecutionResult, InputFile, Limits, Workspace
from executor_service.v1 import executor_pb2 as pb
from executor_service.wire.programs import from_message, to_message
from fairbox.net.rendezvous import preferred
from fairbox.security import ClientSecurity, client_security
from limiter import LeaseLike

QUEUE_ALLOWANCE_S = 600.0
"""Seconds that a call may spend in queues and set-up, on top of the program's own time."""
_ASSUMED_WALL_S = 600.0
"""The program's time where the request leaves it to the server: the server's default is not above its usual maximum."""
_STATUS_S = 10.0
"""It needs no place in a queue."""
_PREPARE_S = 900.0
"""A preparation, and those before it."""
_OVERHEAD_S = 30.0
"""Set-up, killing and the way back."""


class ExecutorClient(ImageCalls, SessionCalls):
    """`target` is `host:port`. With `dns:///host:port`, or several with commas, calls are spread over all servers that
    are meant by their load, and what has a session or a workspace goes where that is. Enter it inside the event loop
    that uses it. `security`: TLS and the token; None: those of the environment (`fairbox.security.client_security`)."""

    def __init__(self, target: str, *, security: ClientSecurity | None = None) -> None:
        self.target = target
        self._calls = Calls(target, client_security() if security is None else security)

    async def __aenter__(self) -> ExecutorClient:
        await self._calls.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._calls.__aexit__(kind, error, trace)

    def statistics(self) -> list[ServerInfo]:
        """Every server that this client knows, and what it has under way there."""
        return self._calls.fleet.statistics()

    async def execute(
        self,
        code: str,
        *,
        language: str = "python",
        stdin: bytes | str = b"",
        args: Sequence[str] = (),
        files: Sequence[InputFile] = (),
        return_paths: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        limits: Limits | None = None,
        workspace_id: str = "",
        workspace_read_only: bool = False,
        image: str = "",
        user: str = "",
        lease: LeaseLike | None = None,
        request_id: str = "",
        tenant: str = "",
        profile: str = "",
        session_id: str = "",
        beside: bool = False,
        display: bool | None = None,
        timeout: float | None = None,
        call_timeout: float | None = None,
    ) -> ExecutionResult:
        """Runs a program and returns what became of it; the arguments are the fields of Program. Cancelling kills it.
        With a `session_id` it runs as the next cell of that session, or beside its shell (see `Session.run`).
        `call_timeout` (seconds) bounds the whole call, queues included; by default the program's wall time plus
        QUEUE_ALLOWANCE_S. Raises InvalidRequest, NotFound, NotAllowed, Overloaded, LeaseRefused, RunLost,
        ExecutorUnavailable, and in sessions SessionNotFound or SessionBusy."""
        request = program_to_proto(
            Program(
                code=code,
                language=language,
                stdin=stdin,
                args=args,
                files=files,
                return_paths=return_paths,
                env=env,
                limits=limits,
                workspace_id=workspace_id,
                workspace_read_only=workspace_read_only,
                image=image,
                user=user,
                lease=lease,
                request_id=request_id,
                tenant=tenant,
                profile=profile,
                session_id=session_id,
                beside=beside,
                display=display,
                timeout=timeout,
            )
        )
        return await self._execute(request, call_timeout)

    async def _execute(self, request: pb.ExecuteCodeRequest, call_timeout: float | None) -> ExecutionResult:
        # Safe to repeat: the request carries a request_id, so a server that ran it, or still runs it, answers from that
        # run; one that died took the program with it.
        seconds = _time_for(request) if call_timeout is None else call_timeout
        where = self._calls.home_of(request.session_id, request.workspace_id, request.image)
        response, _ = await self._calls.ask("ExecuteCode", request, seconds, among=where, moves=_may_move(request))
        return from_message(ExecutionResult, response.result)

    async def stream(
        self, program: Program | str, *, call_timeout: float | None = None
    ) -> AsyncGenerator[OutputChunk | ExecutionResult, None]:
        """Runs a program: its output as OutputChunk while it is written, then the result, once, as the last item.

        The chunks of a stream put together are the `data` of that stream in the result. Leaving the loop early kills
        the program when the iterator is closed: use `contextlib.aclosing`. `call_timeout` and errors as in `execute`.
        """
        request = program_to_proto(_program(program))
        seconds = _time_for(request) if call_timeout is None else call_timeout
        where = self._calls.home_of(request.session_id, request.workspace_id, request.image)
        deadline = asyncio.get_running_loop().time() + seconds
        async with self._calls.reached(deadline, among=where) as member:
            async for event in stream_execution(member, request, deadline=deadline, target=self.target):
                yield event

    async def execute_all(
        self, programs: Sequence[Program | str], *, max_parallel: int = 64, call_timeout: float | None = None
    ) -> list[ExecutionResult | ExecutorError]:
        """Runs programs, each by a call of its own and so spread over all servers, at most `max_parallel` at once.

        For each, in their order, its result or the error that kept it from running. `call_timeout` bounds each call.
        """
        if max_parallel < 1:
            raise ValueError(f"max_parallel is {max_parallel}, must be at least 1")
        room = asyncio.Semaphore(max_parallel)

        async def one(program: Program | str) -> ExecutionResult | ExecutorError:
            async with room:
                try:
                    return await self._execute(program_to_proto(_program(program)), call_timeout)
                except ExecutorError as error:
                    return error

        async with asyncio.TaskGroup() as tasks:
            calls = [tasks.create_task(one(program)) for program in programs]
        return [call.result() for call in calls]

    async def verify(
        self,
        code: str,
        cases: Sequence[Case],
        *,
        language: str = "python",
        entry_point: str = "",
        files: Sequence[InputFile] = (),
        test_files: Sequence[InputFile] = (),
        setup_code: str = "",
        limits: Limits | None = None,
        comparison: Comparison | None = None,
        tolerance: Tolerance | None = None,
        checker: Checker | None = None,
        interactor: Checker | None = None,
        stop_on_failure: bool = False,
        workspace_id: str = "",
        request_id: str = "",
        tenant: str = "",
        timeout: float | None = None,
        call_timeout: float | None = None,
        on_case: Callable[[CaseResult], object] | None = None,
    ) -> VerifyResult:
        """Grades a candidate against cases of one kind, which says the style. Cancelling kills what runs.

        `limits` are those of each case; `comparison` None: WHITESPACE for texts, EXACT for values; `tolerance` None:
        1e-6. A `checker` decides in place of a comparison, an `interactor` talks with the candidate (StdioCase).
        `timeout`: seconds that each case may take, as `limits.wall_time_s`. `call_timeout` (seconds) bounds the whole
        call; by default the wall time of all cases, and of their checks, plus QUEUE_ALLOWANCE_S. `on_case` is called
        with the result of each case as soon as it is known, once. Raises as `execute`, and what `on_case` raises.
        """
        limits = limits_with(limits, timeout) or Limits()
        try:
            request = pb.VerifyCodeRequest(
                code=code,
                style=pb.VerifyStyle.Value(f"VERIFY_STYLE_{style_of(cases).name}"),
                cases=[case_to_proto(case) for case in cases],
                language=language,
                entry_point=entry_point,
                files=[to_message(pb.InputFile, file) for file in files],
                test_files=[to_message(pb.InputFile, file) for file in test_files],
                setup_code=setup_code,
                limits=to_message(pb.Limits, limits),
                comparison=pb.Comparison.Value(f"COMPARISON_{comparison or 'UNSPECIFIED'}"),
                tolerance=to_message(pb.Tolerance, tolerance) if tolerance else None,
                checker=to_message(pb.Checker, checker) if checker else None,
                interactor=to_message(pb.Checker, interactor) if interactor else None,
                stop_on_failure=stop_on_failure,
                workspace_id=workspace_id,
                request_id=request_id or uuid.uuid4().hex,
                tenant=tenant,
            )
        except ValueError as error:  # a value that is not plain data, text that is not valid Unicode
            raise InvalidRequest(f"the request can't be sent: {error}", ()) from None
        if call_timeout is None:
            case_s = _case_s(limits, checker, interactor)
            call_timeout = case_s * len(cases) + QUEUE_ALLOWANCE_S + _OVERHEAD_S
        return await self._verify(request, call_timeout, on_case)

    async def _verify(
        self, request: pb.VerifyCodeRequest, call_timeout: float, on_case: Callable[[CaseResult], object] | None
    ) -> VerifyResult:
        where = self._calls.home_of(request.workspace_id)
        if on_case is not None:
            deadline = asyncio.get_running_loop().time() + call_timeout
            async with self._calls.reached(deadline, among=where) as member:
                return await stream_verification(member, request, on_case, deadline=deadline, target=self.target)
        # Safe to repeat, as in `execute`.
        response, _ = await self._calls.ask("VerifyCode", request, call_timeout, among=where)
        return verify_from_proto(response)

    async def status(self, *, call_timeout: float = _STATUS_S) -> dict[str, pb.GetStatusResponse]:
        """Status of each server, by its address: its level, languages and profiles, and what runs there."""
        found = {}
        for address in self._calls.fleet.addresses:  # safe to repeat: it changes nothing
            found[address], _ = await self._calls.ask(
                "GetStatus", pb.GetStatusRequest(), call_timeout, among=frozenset({address})
            )
        return found

    async def prepare_workspace(
        self,
        *,
        local_path: str = "",
        bundle: bytes = b"",
        remote_url: str = "",
        commit: str = "",
        mount_path: str = "",
        idle_ttl_s: float = 0.0,
        tenant: str = "",
        call_timeout: float | None = None,
    ) -> Workspace:
        """Makes a repository at a commit available to runs: one of the three sources, and the commit.

        Of several servers one has it after this, the same one for the same source while it is there, and runs of the
        same tenant that name it go there; where that one is gone, they get NotFound, and preparing again finds another.
        `call_timeout` (seconds) bounds the call. Raises InvalidRequest, Overloaded (workspaces in use leave no room) or
        ExecutorUnavailable.
        """
        sources: dict[str, str | bytes] = {"local_path": local_path, "bundle": bundle, "remote_url": remote_url}
        given = {name: value for name, value in sources.items() if value}
        if len(given) != 1:
            raise InvalidRequest(f"a workspace has one source, one of {', '.join(sources)}; {len(given)} are given", ())
        try:
            request = pb.PrepareWorkspaceRequest(
                commit=commit,
                mount_path=mount_path,
                idle_ttl_s=idle_ttl_s,
                tenant=tenant,
                **given,  # type: ignore[arg-type]
            )
        except ValueError as error:
            raise InvalidRequest(f"the request can't be sent: {error}", ()) from None
        # One source has one home, so that its runs share what was prepared. Safe to repeat, anywhere: what was prepared
        # is found again, and the same preparation is never done twice at once.
        addresses = self._calls.fleet.addresses
        source = f"{_named(given)} {commit} {mount_path}"
        home = frozenset({preferred(addresses, source)}) if len(addresses) > 1 else None
        seconds = _PREPARE_S if call_timeout is None else call_timeout
        response, address = await self._calls.ask(
            "PrepareWorkspace", request, seconds, among=home, moves=True, anywhere=True
        )
        workspace = from_message(Workspace, response)
        # One that was prepared again has moved: its former home may have removed it.
        self._calls.homes[workspace.workspace_id] = frozenset({address})
        return workspace


def _may_move(request: pb.ExecuteCodeRequest) -> bool:
    """Says whether another server may be asked while one may be running it: only one of them can bind its lease."""
    return request.HasField("lease") and not request.session_id


def _named(source: Mapping[str, str | bytes]) -> dict[str, str]:
    """A workspace's source in a few words: a bundle, which can have many megabytes, by its hash."""
    return {
        name: hashlib.sha256(said).hexdigest() if isinstance(said, bytes) else said for name, said in source.items()
    }


def _program(program: Program | str) -> Program:
    return Program(code=program) if isinstance(program, str) else program


def _time_for(request: pb.ExecuteCodeRequest) -> float:
    """Seconds that a call may take: its program, the queues, and the way."""
    return (request.limits.wall_time_s or _ASSUMED_WALL_S) + _OVERHEAD_S + QUEUE_ALLOWANCE_S


def _case_s(limits: Limits, checker: Checker | None, interactor: Checker | None) -> float:
    """Seconds that a case may take. A checker may have to be run twice, and an interactor waits for the candidate."""
    times = [limits]
    if checker is not None:
        times += [checker.limits] * 2
    if interactor is not None:
        times += [interactor.limits, limits]
    return sum(each.wall_time_s or _ASSUMED_WALL_S for each in times)
