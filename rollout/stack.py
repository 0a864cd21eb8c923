"""Limiter and executor as child processes of this one: the whole service on one machine.

Invariants: both children are ready when the context is entered; both are dead, with everything below them, when it is
left, however it is left, and they end when this process does, even if it is killed; within `kept()` one that ends by
itself is started again. What they print goes to this process's stderr. It knows the services by their command lines
alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import site
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from fairbox.errors import ConfigError, FairboxError
from fairbox.net.channels import open_channel
from fairbox.net.ports import free_ports
from fairbox.net.serving import reachable
from fairbox.security import CLIENT_VARIABLES, client_security

STARTS_SERVICES = "`fairbox up` starts limiter and executor on this machine"
"""Hint for the case that nothing listens at a service's address."""
READY_WITHIN_S = 120.0
"""A service that is not ready by then is broken: on a loaded laptop the two need a few seconds, and a minute if they
are started for the first time on a machine that has no processor to spare."""
STOP_WITHIN_S = 15.0
"""From SIGTERM to SIGKILL; the executor's own drain ends before."""
_POLL_S = 0.05
_SCOPE = ("systemd-run", "--user", "--scope", "--quiet", "--collect", "--property=Delegate=yes", "--")
"""Runs a command in a control group that is its user's own, where a systemd of that user's is."""
_SCOPE_WITHIN_S = 10.0
_STDERR = 2
_FRESH = "fresh=true"
MOST_RESTARTS = 10
"""Most restarts in a run: services that end more often can't live here."""
_LOG = logging.getLogger("fairbox.rollout")


@dataclass(frozen=True, slots=True)
class _Command:
    args: Sequence[str]
    health: str
    """Address at which it says that it is ready."""
    before: Sequence[str] = ()
    """Words to put before it."""


@dataclass(frozen=True, slots=True)
class StackPorts:
    """Addresses that the children listen on, each `host:port`."""

    limiter: str = "127.0.0.1:50052"
    limiter_admin: str = "127.0.0.1:50053"
    limiter_health: str = "127.0.0.1:50062"
    executor: str = "127.0.0.1:50051"
    executor_health: str = "127.0.0.1:50061"
    gateway: str = ""
    """SandboxFusion's interface of the executor; empty: none."""

    @classmethod
    def free(cls) -> StackPorts:
        """Ports that are free now, so that several stacks can run beside each other; without a gateway."""
        return cls(*(f"127.0.0.1:{port}" for port in free_ports(5)))


class LocalStack:
    """`async with LocalStack() as stack`: a limiter and an executor that belong to this process.

    `limiter_args` and `executor_args` are appended to their command lines (`--name VALUE` or `name=VALUE`). Raises
    FairboxError when one ends or is not ready in time; why, it has said on stderr itself.
    """

    def __init__(
        self,
        ports: StackPorts | None = None,
        *,
        limiter_args: Sequence[str] = (),
        executor_args: Sequence[str] = (),
    ) -> None:
        self.ports = ports or StackPorts.free()
        self._limiter_args = tuple(limiter_args)
        self._executor_args = tuple(executor_args)
        self._children: dict[str, asyncio.subprocess.Process] = {}
        self._commands: dict[str, _Command] = {}
        self.no_scope = ""
        """Why systemd gave the executor of an ordinary user no control group."""

    async def __aenter__(self) -> LocalStack:
        ports = self.ports
        # Nothing runs that an earlier limiter has let in: both are new.
        limiter = [_FRESH, f"listen={ports.limiter}", f"admin_listen={ports.limiter_admin}"]
        limiter += [f"health_listen={ports.limiter_health}", "metrics_listen=", *self._limiter_args]
        executor = [f"listen={ports.executor}", f"health_listen={ports.executor_health}"]
        limiter_here = reachable(ports.limiter, ports.limiter.rpartition(":")[2])
        executor += [f"gateway_listen={ports.gateway}", f"limiter={limiter_here}", "metrics_listen="]
        executor += self._executor_args
        try:
            await self._start("limiter", _Command(limiter, ports.limiter_health))
            await self._start("executor_service", _Command(executor, ports.executor_health, await self._scope()))
        except BaseException:
            await asyncio.shield(self.stop())
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.shield(self.stop())

    def pid(self, name: str) -> int:
        """Process id of `limiter` or `executor_service`."""
        return self._children[name].pid

    def ended(self) -> str | None:
        """Name of a child that has ended by itself; None while both run."""
        return next((name for name, child in self._children.items() if child.returncode is not None), None)

    async def until_ended(self) -> str:
        """Waits until a child has ended by itself, and says which, and how."""
        while (name := self.ended()) is None:
            waiting = [asyncio.ensure_future(child.wait()) for child in self._children.values()]
            try:
                await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for each in waiting:
                    each.cancel()
        return f"{name} ended with exit code {self._children[name].returncode}"

    @contextlib.asynccontextmanager
    async def kept(self) -> AsyncIterator[None]:
        """Context in which a child that ends by itself is started again, so that a run outlives it."""
        keeper = asyncio.create_task(self._keep(), name="services")
        try:
            yield
        finally:
            keeper.cancel()
            await asyncio.wait([keeper])

    async def _keep(self) -> None:
        for _ in range(MOST_RESTARTS):
            _LOG.warning("%s; it is started again", await self.until_ended())
            name = self.ended()
            assert name is not None
            # Programs of before may be running, which a new limiter has to count.
            command = self._commands[name]
            again = replace(command, args=[word for word in command.args if word != _FRESH])
            try:
                await self._start(name, again)
            except (FairboxError, OSError) as error:
                _LOG.error("%s could not be started again: %s", name, error)
        _LOG.error("services ended %d times: they are not started again", MOST_RESTARTS)

    async def stop(self) -> None:
        """SIGTERM, then SIGKILL after a grace time; the executor first, so that it can still release. Idempotent."""
        for name in reversed(list(self._children)):
            child = self._children.pop(name)
            with contextlib.suppress(ProcessLookupError):
                child.terminate()
            try:
                await asyncio.wait_for(child.wait(), STOP_WITHIN_S)
            except TimeoutError:
                child.kill()
                await child.wait()

    async def _scope(self) -> Sequence[str]:
        """Words to put before the executor's command."""
        if os.geteuid() == 0:
            return ()  # it makes groups where it is
        try:
            tried = await asyncio.create_subprocess_exec(
                *_SCOPE, "true", stdin=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE
            )
        except OSError as error:
            self.no_scope = str(error)
            return ()
        try:
            _, said = await asyncio.wait_for(tried.communicate(), _SCOPE_WITHIN_S)
        except TimeoutError:
            tried.kill()
            await tried.wait()
            said = f"no answer within {_SCOPE_WITHIN_S:g} s".encode()
        if tried.returncode == 0:
            return _SCOPE
        self.no_scope = said.decode(errors="replace").strip()
        return ()

    async def _start(self, module: str, command: _Command) -> None:
        self._commands[module] = command
        self._children[module] = await asyncio.create_subprocess_exec(
            *command.before,
            sys.executable,
            "-P",  # what lies in the current folder is not this service's
            "-m",
            module,
            *command.args,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=_STDERR,
            env=_environment(),
            start_new_session=True,  # Ctrl-C in a terminal is for the parent, which then stops the children in order
        )
        try:
            async with asyncio.timeout(READY_WITHIN_S), open_channel(command.health) as channel:
                while not await _serving(channel):
                    if (code := self._children[module].returncode) is not None:
                        raise FairboxError(f"{module} ended with exit code {code} before it was ready")
                    await asyncio.sleep(_POLL_S)
        except TimeoutError:
            raise FairboxError(f"{module} was not ready within {READY_WITHIN_S:.0f} s") from None


def refuse_foreign_security() -> None:
    """ConfigError where the environment says how other services are reached: calls to those of this run would fail."""
    security = client_security()
    if not security.plain:
        name = "FAIRBOX_TLS_CA" if security.tls_ca else "FAIRBOX_TOKEN_FILE"
        raise ConfigError(f"up starts services of its own, without TLS and tokens, but {name} is set: unset it")


def own_python() -> tuple[str, str]:
    """The interpreter of this command, for programs, unless EXECUTOR_PYTHON names another; if they may not read its
    virtual environment, the one below that, and a sentence that says so."""
    if named := os.environ.get("EXECUTOR_PYTHON"):
        return named, ""
    closed = [path for path in (sys.prefix, *site.getsitepackages()) if not _open_to_all(Path(path))]
    if os.geteuid() != 0 or not closed:  # programs of an ordinary user are that user's
        return sys.executable, ""
    return os.path.realpath(sys.executable), (
        f"programs see no packages of {sys.prefix}: only its owner may read {closed[0]}, which chmod o+rx changes"
    )


@contextlib.asynccontextmanager
async def own_executor() -> AsyncIterator[str]:
    """Address of an executor that lives as long as the block, with a limiter of its own. They say nothing but warnings,
    because stderr is somebody else's. Raises FairboxError."""
    refuse_foreign_security()
    quiet = ["log_level=warning"]
    async with LocalStack(limiter_args=quiet, executor_args=[f"python={own_python()[0]}", *quiet]) as stack:
        yield stack.ports.executor


def _open_to_all(folder: Path) -> bool:
    return not folder.exists() or folder.stat().st_mode & 0o005 == 0o005


async def _serving(channel: grpc.aio.Channel) -> bool:
    stub = health_pb2_grpc.HealthStub(channel)
    try:
        answer = await stub.Check(health_pb2.HealthCheckRequest(service="readiness"), timeout=1.0)
    except grpc.aio.AioRpcError:
        return False
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


def _environment() -> dict[str, str]:
    """This process's, but for how services elsewhere are reached: ours speak to each other without TLS and tokens."""
    kept = {name: value for name, value in os.environ.items() if name not in CLIENT_VARIABLES}
    return kept | {"FAIRBOX_PARENT_PID": str(os.getpid())}
