"""Puts the executor together: looks at the machine, listens, serves, drains."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

from prometheus_client.metrics_core import Metric

from executor_service.config import ExecutorConfig
from executor_service.gateway.service import open_gateway
from executor_service.images.fetching import ImageFetches
from executor_service.images.table import Images
from executor_service.machine.capacity import fitted
from executor_service.machine.facts import LevelCapabilities
from executor_service.machine.languages import Capabilities, probed
from executor_service.machine.levels import choose, most_boxes, no_longer, scratch_folder, try_levels
from executor_service.programs.compiler import Compiler
from executor_service.programs.plans import Hold, Planner, minimal_environment
from executor_service.programs.programs import Programs
from executor_service.rpc.access import ACCESS
from executor_service.rpc.metrics import executor_metrics
from executor_service.rpc.service import SERVICE_NAME, ExecutorService, sessions_once
from executor_service.rpc.status import status
from executor_service.rpc.workspaces import WorkspaceCalls
from executor_service.runs.admission import Admission
from executor_service.runs.dedup import DedupTable
from executor_service.runs.leases import LeaseGate, NoLimiter
from executor_service.runs.queue import ExecutionQueue
from executor_service.runs.remote_limiter import RemoteLimiter
from executor_service.runs.results_file import ResultsFile
from executor_service.runs.tally import RunTally
from executor_service.sandbox.groups import find_groups
from executor_service.sandbox.host import Host
from executor_service.sandbox.lease_page import LeasePage
from executor_service.sandbox.limits import memory_of
from executor_service.sandbox.memory import LOOK_S, KernelKills, memory_bytes, room_for_programs
from executor_service.sandbox.pool import SandboxPool
from executor_service.sandbox.report import SandboxFailure
from executor_service.sessions.displayed import DisplayedPrograms, Router
from executor_service.sessions.memory import SessionMemory
from executor_service.sessions.sessions import Sessions
from executor_service.sessions.snapshots import Snapshots
from executor_service.sessions.table import SessionTable
from executor_service.v1 import executor_pb2 as pb
from executor_service.v1 import executor_pb2_grpc
from executor_service.verification.grader import Grader
from executor_service.verification.guest_process import guest_process
from executor_service.verification.verify import Verifier
from executor_service.workspaces.folder import WorkspaceFolder
from executor_service.workspaces.table import open_workspaces
from fairbox.clock import Clock, MonotonicClock
from fairbox.net.metrics import MetricsServer
from fairbox.net.service_process import settle_memory
from fairbox.net.serving import GrpcServer, HealthServer
from fairbox.security import ClientSecurity, PortGuard, Role, ServerSecurity, client_security, security_metrics
from fairbox.version import installed_version
from limiter import ExecutorSession

_LOG = logging.getLogger("executor_service")
_LIMITER_WITHIN_S = 15.0
"""Seconds that readiness waits for the limiter at start. Less than startup probes allow."""
_LIMITER_LOOK_S = 0.02
_LIMITER_AWAY_S = 10.0
"""So long programs without a lease wait for a limiter that can't be reached: their callers can ask another executor."""
_BUCKET = "code"
"""Bucket of the limiter for requests that bring no lease."""
_KNOWN_IDS = 200_000
"""Ended request ids that are known: an hour of 50 programs a second."""
_KEPT_BYTES = 256 << 20
"""Most bytes of results that are kept to answer repeated requests."""
_COMPILED_BYTES = 256 << 20
"""Most bytes of compiled programs that are kept."""
_KEPT_S = 600.0
"""Seconds for which they are kept: longer than a client goes on asking."""
_INTERRUPT_S = 5.0
"""A cell that is interrupted has so long to end before it is killed with its session."""
_LAST_CALLS_S = 5.0
"""After the last run has ended, calls get so long to take their answers."""


async def serve(config: ExecutorConfig, stop: asyncio.Event) -> None:
    """Serves until `stop` is set, then drains. FairboxError in one sentence when it can't start."""
    config = fitted(config, await room(config))
    async with contextlib.AsyncExitStack() as stack:
        security, limiter_security = ServerSecurity(config), client_security()
        guard = security.port(ACCESS, needs=Role.CLIENT, setting="listen")
        health = await stack.enter_async_context(
            HealthServer(config.health_listen, insecure=config.insecure, beside_guarded=security.guarded)
        )
        clock = MonotonicClock()
        folder = open_workspace_folder(stack, config)
        name = config.name or f"{socket.gethostname()}:{config.listen.rpartition(':')[2]}"
        here, capabilities = await open_here(stack, config, clock, str(folder.store))
        workspaces = await stack.enter_async_context(open_workspaces(config, folder, clock, here.boxes, here.planner))
        copy_bytes = config.workspace_copy_bytes if here.host.bare else 0
        calls = WorkspaceCalls(workspaces, config.remotes, here.host.binds, name=name, copy_bytes=copy_bytes)
        gate = await stack.enter_async_context(open_gate(config, name, limiter_security, here.boxes.leases))
        images = await stack.enter_async_context(open_images(config, here, clock))
        work, sessions, runs, verifier = await open_work(stack, config, here, calls.hold, images, gate, clock, name)
        policy, installed, profiles = config.policy(), capabilities.versions.keys(), here.boxes.profiles
        once = await stack.enter_async_context(sessions_once(sessions, clock, open_table()))
        snapshots, started, version = Snapshots(images, name), clock.now(), installed_version()
        boxes, compiler = here.boxes, here.compiler

        def now() -> pb.GetStatusResponse:
            kept = (calls.status(), images.status(boxes.images.ready))
            facts, uptime_s = security.facts(), clock.now() - started
            return status(
                config, name, version, runs, sessions, boxes, compiler, gate, capabilities, kept, uptime_s, facts
            )

        fetches = await stack.enter_async_context(ImageFetches(images, config.remotes))
        kinds = (policy, installed, profiles)
        service = ExecutorService(runs, verifier, sessions, once, *kinds, calls, images, snapshots, fetches, now)
        if config.metrics_listen:
            figures = partial(executor_metrics, now, runs.tally, sessions.table, boxes)
            await stack.enter_async_context(metrics_server(config, figures, security))
        server = await stack.enter_async_context(grpc_server(config, service, guard))
        if config.gateway_listen:
            tls = security.https() if config.tls_cert else None
            await stack.enter_async_context(open_gateway(config, runs, work.displayed, installed, name, tls))
        settle_memory()
        await reached(gate, stop)
        await complete(capabilities, stop)
        await health.set_ready(not stop.is_set())
        _LOG.info("listening on %s, limiter %s", server.address, config.limiter)
        if reason := here.host.groups.reason:
            _LOG.info("no control groups, memory and processes are looked at every 25 ms: %s", reason)
        await stop.wait()
        await health.set_ready(False)
        await drain(config, runs, sessions)
        await server.stop(_LAST_CALLS_S)


async def room(config: ExecutorConfig) -> int:
    """Bytes of memory that programs can have together."""
    return await asyncio.to_thread(lambda: room_for_programs(memory_bytes(), config.scratch))


@contextlib.asynccontextmanager
async def looking(kills: KernelKills) -> AsyncIterator[None]:
    """Looks whether the kernel has killed for want of memory, until the block is left."""

    async def look() -> None:
        while True:
            kills.look()
            await asyncio.sleep(LOOK_S)

    task = asyncio.create_task(look(), name="kernel's kills")
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


async def reached(gate: LeaseGate, stop: asyncio.Event) -> None:
    """Returns when the limiter has welcomed this server, so that no call comes before it can be served: a new pod may
    have to wait until the network lets it through. Not for ever: where the limiter is down, calls are told so."""
    deadline = asyncio.get_running_loop().time() + _LIMITER_WITHIN_S
    while not gate.status().valid and not stop.is_set():
        if asyncio.get_running_loop().time() > deadline:
            _LOG.warning("the limiter was not reached within %g s; ready all the same", _LIMITER_WITHIN_S)
            return
        await asyncio.sleep(_LIMITER_LOOK_S)


async def complete(capabilities: Capabilities, stop: asyncio.Event) -> None:
    """Returns when every language that the settings promise works. Meanwhile calls for the others are served, and
    GetStatus says what is lacking."""
    if lacking := capabilities.lacking():
        _LOG.error("not ready: %s", "; ".join(lacking))
    waits = [asyncio.create_task(event.wait()) for event in (capabilities.complete, stop)]
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for wait in waits:
        wait.cancel()


def grpc_server(config: ExecutorConfig, service: ExecutorService, guard: PortGuard) -> GrpcServer:
    """The server that takes gRPC calls."""
    age_ms = round(config.max_connection_age_s * 1000)
    return GrpcServer(
        config.listen,
        add=lambda server: executor_pb2_grpc.add_ExecutorServiceServicer_to_server(service, server),
        services=[SERVICE_NAME],
        insecure=config.insecure,
        guard=guard,
        # Without a grace time: a connection that has come of age ends with the last call on it, however long it takes.
        options=[("grpc.max_connection_age_ms", age_ms)] if age_ms else [],
    )


def metrics_server(
    config: ExecutorConfig, figures: Callable[[], Iterable[Metric]], security: ServerSecurity
) -> MetricsServer:
    """The server that Prometheus scrapes."""
    prefix, insecure = "fairbox_executor", config.insecure or security.guarded

    def collect() -> Iterator[Metric]:
        yield from figures()
        yield from security_metrics(prefix, security.facts())

    return MetricsServer(config.metrics_listen, collect, prefix=prefix, insecure=insecure)


async def drain(config: ExecutorConfig, runs: ExecutionQueue, sessions: Sessions) -> None:
    """Makes nothing new, and lets what runs come to its end."""
    counts = runs.statistics()
    _LOG.info("ending: %d programs are running, %d requests are waiting", counts.running, counts.queued)
    sessions.draining = True
    await runs.drain(config.drain_grace_s)


@contextlib.asynccontextmanager
async def open_images(config: ExecutorConfig, here: Here, clock: Clock) -> AsyncIterator[Images]:
    """The images of this server. ConfigError when they can't be used."""
    store = None
    if config.image_dir:
        from executor_service.images.store import open_store  # here: a server without images does without pydantic

        store = await asyncio.to_thread(open_store, config.image_dir)
    mounts, most = not here.host.bare, config.max_snapshot_bytes
    async with Images(store, clock, mounts, here.boxes.images.has, most_snapshot_bytes=most) as images:
        yield images


def open_workspace_folder(stack: contextlib.AsyncExitStack, config: ExecutorConfig) -> WorkspaceFolder:
    """Before the boxes, which mount what is in it, and closed after them. ConfigError when it can't be used."""
    folder = WorkspaceFolder(config.workspace_dir)
    stack.push_async_callback(asyncio.to_thread, folder.close)
    return folder


class Here(NamedTuple):
    """Parts that run programs on this machine."""

    host: Host
    boxes: SandboxPool
    planner: Planner
    compiler: Compiler


async def open_here(
    stack: contextlib.AsyncExitStack, config: ExecutorConfig, clock: Clock, store: str
) -> tuple[Here, Capabilities]:
    """The sandboxes of this machine, and what they can do; FairboxError if nothing works."""
    host, boxes, levels = await stack.enter_async_context(open_boxes(config, clock, store))
    planner = Planner(host, boxes.profiles, boxes.loaded)
    try:
        missing = {**host.missing, **config.not_offered()}
        capabilities = await stack.enter_async_context(
            probed(planner, boxes, missing=missing, levels=levels, needed=config.promised())
        )
    except SandboxFailure as failure:
        raise no_longer(host, failure) from None
    maxima = config.policy().maxima
    compiler = Compiler(planner, versions=capabilities.versions, maxima=maxima, max_bytes=_COMPILED_BYTES)
    return Here(host, boxes, planner, compiler), capabilities


@contextlib.asynccontextmanager
async def open_boxes(
    config: ExecutorConfig, clock: Clock, store: str
) -> AsyncIterator[tuple[Host, SandboxPool, Sequence[LevelCapabilities]]]:
    """The host that sandboxes run on, the sandboxes with the first profile loaded, and the levels that were tried.

    Workspaces are below `store`."""
    groups = await asyncio.to_thread(find_groups, config.cgroups)
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(asyncio.to_thread, groups.remove)
        scratch = stack.enter_context(scratch_folder(config.scratch))
        tried = await try_levels(config, clock, groups=groups, scratch=scratch, store=store)
        host = tried.hosts[choose(tried, config)]
        boxes = SandboxPool(
            host,
            clock,
            profiles=config.runtime_profiles(),
            env=minimal_environment(host),
            limits=config.policy().defaults,
            spare=config.spare_boxes,
            most=most_boxes(config),
        )
        try:
            await stack.enter_async_context(boxes)
        except SandboxFailure as failure:
            raise no_longer(host, failure) from None
        yield host, boxes, tried.levels


async def open_work(
    stack: contextlib.AsyncExitStack,
    config: ExecutorConfig,
    here: Here,
    hold: Hold,
    images: Images,
    gate: LeaseGate,
    clock: Clock,
    name: str,
) -> tuple[Router, Sessions, ExecutionQueue, Verifier]:
    """Every way to run something in the sandboxes of this machine, sessions among them; the queue in front of it; and
    verifications, whose cases go through that queue."""
    host, boxes, planner, compiler = here
    weights, most_running, most_queued = config.tenant_weights, config.max_concurrent, config.max_queued
    size_of = partial(memory_of, apart=not (host.bare or host.groups.works))
    usual = most_running * size_of(config.policy().defaults)  # as `max_concurrent` says how many of these may run
    admission = Admission(
        max_running=most_running,
        max_queued=most_queued,
        weights=weights,
        max_bytes=max(usual, await room(config)),
    )
    if not host.groups.works:  # else the group of each box tells
        await stack.enter_async_context(looking(host.kills))
    table = SessionTable(name, clock, most=config.max_sessions, weights=weights)
    memory = SessionMemory(admission, size_of, clock)
    sessions = await stack.enter_async_context(
        Sessions(
            boxes, planner, hold, clock, images=images, memory=memory, table=table, grace_s=_INTERRUPT_S, name=name
        )
    )
    displayed = DisplayedPrograms(boxes, planner, hold, clock)
    programs = Programs(boxes, planner, compiler, hold, images, clock)
    work = Router(programs, displayed, sessions)
    known, results = await open_known(stack, config, clock)
    runs = await stack.enter_async_context(
        ExecutionQueue(
            work,
            gate,
            clock,
            name=name,
            level=host.level,
            admission=admission,
            size_of=size_of,
            table=known,
            results=results,
            queue_timeout_s=config.queue_timeout_s,
            turns=sessions,
            tally=RunTally(config.metrics_tenants),
        )
    )
    verifier = await stack.enter_async_context(open_verifier(config, here, hold, programs, runs, clock))
    return work, sessions, runs, verifier


@contextlib.asynccontextmanager
async def open_verifier(
    config: ExecutorConfig, here: Here, hold: Hold, programs: Programs, runs: ExecutionQueue, clock: Clock
) -> AsyncIterator[Verifier]:
    """Verifications, whose cases go through `runs`."""
    host, boxes, planner, _ = here
    grader = Grader(
        partial(guest_process, boxes),
        programs,
        clock,
        minimal_environment(host),
        planner.profile_for,
        hold,
        forks=host.scopes_signals,
        bare=host.bare,
    )
    async with Verifier(runs, grader, clock, table=open_table(), queue_timeout_s=config.queue_timeout_s) as verifier:
        yield verifier


def open_table() -> DedupTable[Any, Any]:
    """An empty table of request ids."""
    return DedupTable(max_ids=_KNOWN_IDS, max_bytes=_KEPT_BYTES, max_age_s=_KEPT_S)


async def open_known(
    stack: contextlib.AsyncExitStack, config: ExecutorConfig, clock: Clock
) -> tuple[DedupTable[Any, Any], ResultsFile | None]:
    """The table of programs' request ids, with those of earlier lives of this server, and the file that keeps them for
    later ones. ConfigError when it can't be used."""
    table = open_table()
    if not config.results_dir:
        return table, None
    results = ResultsFile(config.results_dir, max_ids=_KNOWN_IDS, max_bytes=_KEPT_BYTES, max_age_s=_KEPT_S)
    await stack.enter_async_context(results)
    earlier, now = results.take_earlier(), clock.now()
    for each in earlier:
        size = each.result.size if each.result else 0
        table.restore(each.request_id, each.fingerprint, each.result, size, now - each.age_s)
    if earlier:
        _LOG.info("%d request ids of earlier lives are known", len(earlier))
    return table, results


@contextlib.asynccontextmanager
async def open_gate(
    config: ExecutorConfig, name: str, security: ClientSecurity, leases: LeasePage
) -> AsyncIterator[LeaseGate]:
    """The gate that the configuration asks for; `security` is how the limiter is reached. The inits of boxes read in
    `leases` until when it vouches for this server."""
    if config.limiter == "none":
        yield NoLimiter()
        return
    renewed = leases.allow_until
    async with ExecutorSession(
        config.limiter, executor_id=name, on_renewed=renewed, unavailable_after=_LIMITER_AWAY_S, security=security
    ) as session:
        yield RemoteLimiter(
            session,
            bucket=_BUCKET,
            bind_timeout_s=config.limiter_timeout_s,
            queue_timeout_s=config.queue_timeout_s,
        )
