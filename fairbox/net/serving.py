"""The shell of a gRPC server: address rules, health, reflection, signals and a clean end.

Invariants: a port that can't be had ends the program with one sentence; nothing listens beyond loopback unless it is
guarded by tokens or certificates of clients, or `insecure` says so; health answers on a plaintext port of its own, so
that probes work whatever the main port asks for; stopping is idempotent. It knows no service: callers add theirs.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import logging
import os
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, cast

import grpc
import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from fairbox.errors import EXIT_FAILURE, EXIT_INTERRUPTED, ConfigError, FairboxError
from fairbox.net.channels import server_options
from fairbox.net.reading import bounded
from fairbox.security.client import is_loopback
from fairbox.security.server import PortGuard
from fairbox.telemetry import logs
from fairbox.telemetry.rpc_traces import server_interceptors

_LOOPBACK_OF = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}  # noqa: S104 - compared with, never bound
"""Hosts by which a server that listens on every address is reached from its own machine."""
_LOG = logging.getLogger("fairbox.serving")
_PROBES = 256
"""Connections at once to a health port."""
_WATCHES = 16
"""Calls at once on one of them: a probe makes one, and this port knows no strangers, whose watches would each take
memory for as long as they like."""
_DESCRIPTORS = 65_536
"""Descriptors that a service asks for, if the machine lets it: connections, and what it works with."""
_PR_SET_PDEATHSIG = 1
_SERVING = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


if TYPE_CHECKING:
    Handler = grpc.RpcMethodHandler[Any, Any]


class _Registry:
    """Takes the place of a server where generated code adds a service to it: its handlers are `bounded()` there."""

    def __init__(self, server: grpc.aio.Server) -> None:
        self._server = server

    def add_generic_rpc_handlers(self, handlers: Iterable[grpc.GenericRpcHandler]) -> None:
        self._server.add_generic_rpc_handlers(tuple(map(_Bounded, handlers)))

    def add_registered_method_handlers(self, service: str, handlers: object) -> None:
        """Newer generated code adds the same handlers in this way too: a short cut that isn't needed."""


class _Bounded(grpc.GenericRpcHandler):
    """Makes the handler of each method once."""

    def __init__(self, inner: grpc.GenericRpcHandler) -> None:
        self._inner = inner
        self._made: dict[str, Handler] = {}

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Handler | None:
        method = handler_call_details.method
        made = self._made.get(method)
        if made is None and (handler := self._inner.service(handler_call_details)) is not None:
            made = self._made[method] = bounded(method, handler)
        return made


class GrpcServer:
    """One listening gRPC server with reflection. Add servicers with `add(server)` before entering it.

    `listen` is `host:port`; port 0 takes a free one, and `address` tells which. `services` are the full names that
    reflection lists.
    """

    def __init__(
        self,
        listen: str,
        *,
        add: Callable[[grpc.aio.Server], None],
        services: Sequence[str],
        insecure: bool = False,
        setting: str = "listen",
        guard: PortGuard | None = None,
        options: Sequence[tuple[str, int]] = (),
    ) -> None:
        """`options` are added to those that all servers have, or replace them."""
        self._guard = guard or PortGuard()
        check_address(listen, insecure=insecure or self._guard.guarded, setting=setting)
        self._listen = listen
        self._options = options
        self._add = add
        self._services = services
        self._setting = setting
        self._server: grpc.aio.Server | None = None
        self.address = listen

    async def __aenter__(self) -> GrpcServer:
        options = dict(server_options(_connections(self._guard.max_connections, self._setting))) | dict(self._options)
        interceptors = [*self._guard.interceptors(), *server_interceptors()]
        server = grpc.aio.server(options=list(options.items()), interceptors=interceptors)
        self._add(cast("grpc.aio.Server", _Registry(server)))
        reflection.enable_server_reflection([*self._services, reflection.SERVICE_NAME], server)
        try_port(self._listen, self._setting)
        try:
            port = self._guard.listen(server, self._listen)
        except RuntimeError:
            raise FairboxError(f"{self._setting}: can't listen on {self._listen}") from None
        await server.start()
        self._server = server
        self.address = reachable(self._listen, port)
        if not is_loopback(self._listen.rpartition(":")[0].strip("[]")):
            self._warn()
        return self

    def _warn(self) -> None:
        """Says in the log what a port beyond loopback lacks."""
        if not self._guard.guarded:
            text = "whoever reaches this port may use it, without token or TLS (insecure=true)"
        elif self._guard.tls is None and not self._guard.harmless:
            text = "tokens and everything else cross the network in the clear: set tls_cert where nothing else encrypts"
        else:
            return
        _LOG.warning("%s is %s: %s", self._setting, self._listen, text)

    async def stop(self, grace: float) -> None:
        """Refuses new calls at once and lets those in flight end for `grace` seconds. Idempotent."""
        server, self._server = self._server, None
        if server is not None:
            await server.stop(grace)

    async def __aexit__(self, *_: object) -> None:
        await asyncio.shield(self.stop(0))


class HealthServer:
    """grpc.health.v1 on its own port, with the services ``""``, ``liveness`` and ``readiness``.

    Liveness is SERVING from start to end; readiness (and ``""``) follows `set_ready()`, and starts NOT_SERVING. This
    port never asks for TLS or a token: probes have neither, and it says nothing else. `beside_guarded`: every other
    port of the service keeps strangers out, so that this one may listen beyond loopback.
    """

    def __init__(self, listen: str, *, insecure: bool = False, beside_guarded: bool = False) -> None:
        self._servicer = health.aio.HealthServicer()
        self._grpc = GrpcServer(
            listen,
            add=lambda server: health_pb2_grpc.add_HealthServicer_to_server(self._servicer, server),
            services=[health.SERVICE_NAME],
            insecure=insecure,
            setting="health_listen",
            guard=PortGuard(max_connections=_PROBES, harmless=beside_guarded),
            options=[("grpc.max_concurrent_streams", _WATCHES)],
        )

    @property
    def address(self) -> str:
        return self._grpc.address

    async def __aenter__(self) -> HealthServer:
        await self._servicer.set("liveness", _SERVING)
        await self.set_ready(False)
        await self._grpc.__aenter__()
        return self

    async def set_ready(self, ready: bool) -> None:
        """Sets whether calls should be sent here."""
        for name in ("", "readiness"):
            await self._servicer.set(name, _SERVING if ready else _NOT_SERVING)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._grpc.__aexit__(kind, error, trace)


def check_address(listen: str, *, insecure: bool, setting: str = "listen") -> None:
    """Raises ConfigError unless `listen` is `host:port` and, without `insecure`, a loopback address."""
    host, colon, port = listen.rpartition(":")
    if not colon or not host or not port.isdigit() or int(port) > 65535:
        raise ConfigError(f"{setting} is {listen!r}, must be HOST:PORT with a port from 0 to 65535")
    if not insecure and not is_loopback(host.strip("[]")):
        raise ConfigError(
            f"{setting} is {listen!r}, which is not loopback, and nothing would protect it: guard the service by "
            "tokens or by tls_client_ca, or set insecure=true where the network keeps strangers out"
        )


def _connections(wanted: int, setting: str) -> int:
    """As many as may be had without taking every descriptor of the process."""
    import resource  # here, because Windows has none, and clients import this module there

    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    most = wanted if soft == resource.RLIM_INFINITY else max(16, soft // 2)
    if wanted > most:
        _LOG.warning(
            "%s takes %d connections and not %d: half of the open files of this process", setting, most, wanted
        )
    return min(wanted, most)


def _raise_descriptors() -> None:
    """More open files, as far as that needs nobody's permission. Windows has no such limit."""
    try:
        import resource
    except ImportError:
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _DESCRIPTORS if hard == resource.RLIM_INFINITY else min(_DESCRIPTORS, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def try_port(listen: str, setting: str) -> None:
    """Raises FairboxError with the reason when nothing can listen on an address: gRPC itself only logs it, in its own
    words."""
    host, _, port = listen.rpartition(":")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host.strip("[]"), int(port)))
        except OSError as error:
            raise FairboxError(f"{setting}: can't listen on {listen}: {error.strerror or error}") from None


def reachable(listen: str, port: int | str) -> str:
    """`listen` with a port, in a form that a client of this machine can use."""
    host = listen.rpartition(":")[0]
    return f"{_LOOPBACK_OF.get(host, host)}:{port}"


def run_service(main: Callable[[asyncio.Event], Awaitable[None]], *, name: str) -> int:
    """Runs a service and returns its exit code. `main` gets an event that SIGTERM or SIGINT sets, and then has to end.

    SIGTERM ends with 0, SIGINT with 130. A second signal kills the program at once. A FairboxError becomes one
    sentence on stderr. With FAIRBOX_PARENT_PID in the environment the service ends when that process does.
    """
    _follow_parent()
    _raise_descriptors()
    received: list[signal.Signals] = []

    async def runner() -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()

        def on_signal(number: signal.Signals) -> None:
            received.append(number)
            stop.set()
            for each in (signal.SIGINT, signal.SIGTERM):
                with contextlib.suppress(NotImplementedError):
                    loop.remove_signal_handler(each)
                signal.signal(each, signal.SIG_DFL)

        for number in (signal.SIGINT, signal.SIGTERM):
            try:
                loop.add_signal_handler(number, on_signal, number)
            except NotImplementedError:  # loops of Windows have none
                signal.signal(number, lambda got, _: loop.call_soon_threadsafe(on_signal, signal.Signals(got)))
        await main(stop)

    try:
        asyncio.run(runner())
    except FairboxError as error:
        logs.say(name, str(error))
        return error.exit_code
    except ExceptionGroup as group:
        ours, others = group.split(FairboxError)
        if ours is None or others is not None:
            raise
        for each in _leaves(ours):
            logs.say(name, str(each))
        return EXIT_FAILURE
    return EXIT_INTERRUPTED if received[:1] == [signal.SIGINT] else 0


async def until_stopped(stop: asyncio.Event, work: Coroutine[Any, Any, object]) -> bool:
    """Runs `work` to its end, or cancels it when `stop` is set; whether it ended."""
    working, stopping = asyncio.ensure_future(work), asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        ended = working.done()
        for future in (working, stopping):
            future.cancel()
        await asyncio.gather(working, stopping, return_exceptions=True)
    if ended:
        working.result()
    return ended


def _follow_parent() -> None:
    """Asks the kernel for SIGTERM at the parent's death, where FAIRBOX_PARENT_PID says who that is (Linux)."""
    parent = os.environ.pop("FAIRBOX_PARENT_PID", "")
    if not parent or sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != int(parent):  # it had died before the kernel was asked
        raise SystemExit(0)


def _leaves(group: BaseExceptionGroup[BaseException]) -> list[BaseException]:
    found: list[BaseException] = []
    for error in group.exceptions:
        found += _leaves(error) if isinstance(error, BaseExceptionGroup) else [error]
    return found
