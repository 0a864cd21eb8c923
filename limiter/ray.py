"""The limiter of a Ray cluster: a named actor that owns the ordinary service's process, and says where it listens.

Everybody speaks gRPC to that process, TLS and tokens included; Ray places it, finds it by its name and starts it again.
Needs the extra `ray`.

Invariants: the service dies with its actor, and the actor with its service, so that Ray starts both again; the actor
holds the service on a leash, which each answer of the cluster makes `_CUT_OFF_S` long again and nothing once it has run
out: the service decides nothing from then on, also when both have stood still and go on, and both end. One that Ray has
started meanwhile does not grant before that: it waits, as every limiter does that starts, until no executor of its
predecessor can still run a program. It keeps nothing: what an operator changed while it ran is gone after a restart,
and an epoch is the time of a start.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

import ray
from ray.exceptions import RayError

from fairbox.errors import ConfigError
from fairbox.security import ClientSecurity
from limiter import ExecutorSession, LimiterClient, LimiterUnavailable
from limiter.client.grpc_transport import GrpcConnection, GrpcTransport
from limiter.client.transport import ConnectionLost
from limiter.leadership.leash import VARIABLE, Leash

_LOG = logging.getLogger("limiter.ray")
DEFAULT_NAME = "limiter"
NAMESPACE = "fairbox"
"""Ray's namespace of the actor: names are unique within it, and drivers of other namespaces find it there."""
_ANSWER_WITHIN_S = 60.0
"""For the actor's first answer: Ray has to start a process, or to start the actor again on another machine."""
_LOOK_WITHIN_S = 5.0
"""For an answer of an actor that is there."""
_LOOK_SHARE = 0.2
"""Time between two questions to the cluster, as a share of the leash."""
_WATCH_EVERY_S = 0.25
_START_WITHIN_S = 60.0
"""The leash of a service that starts, which nobody can have found yet."""
_CUT_OFF_S = 5.0
"""Without an answer of the cluster for so long the service may not lead, or for `executor_ttl_s` if that is shorter:
less than a limiter that starts waits, and than Ray takes to give a machine up."""
_LISTENS = re.compile(r"listening on (\S+), for operators on (\S+)")
_GUARDS = ("client_token_file=", "tls_client_ca=", "insecure=")


class LimiterMismatch(ConfigError):
    """The limiter exists with other settings than were asked for; the text names both. Nothing was changed."""


class LimiterActor:
    """The actor that Ray runs. `settings` are words of `python -m limiter`, like `buckets.code.max_in_flight=10`."""

    def __init__(self, settings: Sequence[str], name: str, namespace: str) -> None:
        self._settings = tuple(settings)
        self._name = name
        self._namespace = namespace
        host = ray.util.get_node_ip_address()
        words = [f"{each}={host}:0" for each in ("listen", "admin_listen")]
        if ray.get_runtime_context().was_current_actor_reconstructed:
            settings = [word for word in settings if not word.startswith("fresh=")]  # its predecessor's work may go on
        words += ["health_listen=127.0.0.1:0", "metrics_listen=", *settings]
        ttls = [float(word.partition("=")[2]) for word in settings if word.startswith("executor_ttl_s=")]
        self._leash, self._length = Leash(), min([_CUT_OFF_S, *(ttl for ttl in ttls if ttl)])
        self._leash.until = time.monotonic() + _START_WITHIN_S
        if not any(word.startswith(_GUARDS) for word in settings):
            words.append("insecure=true")  # as Ray's own ports: whoever reaches the cluster's machines is let in
        self._process = subprocess.Popen(  # noqa: S603 - our own program, with settings of whoever may make actors
            [sys.executable, "-P", "-m", "limiter", *words],
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            pass_fds=[self._leash.descriptor],
            env=os.environ | {"FAIRBOX_PARENT_PID": str(os.getpid()), VARIABLE: str(self._leash.descriptor)},
        )
        self._listens = self._heard()
        self._ask()
        for work in (self._pass_on, self._look, self._watch):
            threading.Thread(target=work, name=f"limiter {work.__name__}", daemon=True).start()

    def facts(self) -> tuple[tuple[str, ...], str, str]:
        """The settings, and the addresses for clients and executors and for operators."""
        return self._settings, *self._listens

    def _heard(self) -> tuple[str, str]:
        """The addresses that the service says it listens on; ConfigError with its last words where it ends instead."""
        assert self._process.stderr is not None
        said: list[str] = []
        for line in self._process.stderr:
            if (found := _LISTENS.search(line)) is not None:
                return found[1], found[2]
            said.append(line)
        raise ConfigError(f"the limiter did not start: {''.join(said[-3:]).strip()}")

    def _pass_on(self) -> None:
        """Copies what the service logs to the actor's log."""
        assert self._process.stderr is not None
        for line in self._process.stderr:
            sys.stderr.write(line)

    def _look(self) -> None:
        """Asks the cluster again and again; it may also never answer."""
        while True:
            self._ask()
            time.sleep(self._length * _LOOK_SHARE)

    def _ask(self) -> None:
        asked = time.monotonic()
        with contextlib.suppress(RayError, ValueError):
            ray.get_actor(self._name, self._namespace)
            if time.monotonic() < self._leash.until:
                self._leash.until = asked + self._length

    def _watch(self) -> None:
        """Ends this process, and its service, when either of them can't go on."""
        while self._process.poll() is None and time.monotonic() < self._leash.until:
            time.sleep(_WATCH_EVERY_S)
        _LOG.error("%s", "the limiter has ended" if self._process.poll() is not None else "cut off from the cluster")
        self._process.kill()
        self._process.wait()
        os._exit(1)  # not a clean exit, after which Ray would not start the actor again


class RayTransport:
    """Streams to the service of the limiter of that name, wherever it listens now. Needs a process that is connected
    to the Ray cluster. `security` is that of the service; None: that of the environment."""

    def __init__(
        self, name: str = DEFAULT_NAME, *, namespace: str = NAMESPACE, security: ClientSecurity | None = None
    ) -> None:
        self.target = f"ray://{namespace}/{name}"
        self._name = name
        self._namespace = namespace
        self._security = security
        self._inner: GrpcTransport | None = None

    async def connect(self) -> GrpcConnection:
        """Opens a stream. An actor that was lost is looked up again by its name."""
        if not ray.is_initialized():
            raise ConnectionLost("this process is not connected to a Ray cluster: call ray.init() first")
        try:
            async with asyncio.timeout(_LOOK_WITHIN_S):
                actor = await asyncio.to_thread(ray.get_actor, self._name, self._namespace)
                _, address, _ = await actor.facts.remote()
        except ValueError:
            raise ConnectionLost(f"there is no actor {self._name!r} in namespace {self._namespace!r}") from None
        except (RayError, TimeoutError) as error:
            raise ConnectionLost(f"the Ray cluster does not answer: {error!r}") from None
        if self._inner is None or self._inner.target != address:
            await self.close()
            self._inner = GrpcTransport(address, self._security)
        return await self._inner.connect()

    async def close(self) -> None:
        """Closes the channel."""
        inner, self._inner = self._inner, None
        if inner is not None:
            await inner.close()


class RayLimiter:
    """`async with RayLimiter({"code": 10}) as limiter, limiter.client() as client: ...`

    The first one makes the actor: detached, so that it outlives whoever made it, and started again by Ray when its
    process, its service or its machine is lost. Everybody else finds it by its name. Leaving the block leaves the actor
    running; `destroy()` ends it. Call `ray.init()` first.
    """

    def __init__(
        self,
        buckets: Mapping[str, int] | None = None,
        *,
        settings: Sequence[str] = (),
        name: str = DEFAULT_NAME,
        namespace: str = NAMESPACE,
        resources: Mapping[str, float] | None = None,
        security: ClientSecurity | None = None,
    ) -> None:
        """`buckets` maps names to limits; `settings` are more words of `python -m limiter`. With neither, the actor
        must exist. `resources` is what Ray places the actor by, e.g. on a machine that is not preempted; it takes no
        CPUs. `security` is what clients and executors of this object use."""
        words = [f"buckets.{bucket}.max_in_flight={limit}" for bucket, limit in (buckets or {}).items()]
        self._settings = (*words, *settings)
        self._name = name
        self._namespace = namespace
        self._resources = dict(resources or {})
        self._security = security
        self._actor: Any = None
        self.address = ""
        """Address of the service, HOST:PORT, when the block was entered; it may be another one after a restart."""
        self.admin_address = ""
        """The same for operators."""

    async def __aenter__(self) -> RayLimiter:
        """Raises LimiterMismatch when the actor exists with other settings, LimiterUnavailable when there is none and
        none is to be made, or when it does not answer."""
        if not ray.is_initialized():
            raise ConfigError("this process is not connected to a Ray cluster: call ray.init() first")
        self._actor = await asyncio.to_thread(self._attach)
        try:
            async with asyncio.timeout(_ANSWER_WITHIN_S):
                found, self.address, self.admin_address = await self._actor.facts.remote()
        except (RayError, TimeoutError) as error:
            why = str(error).strip().rpartition("\n")[2] or f"no answer within {_ANSWER_WITHIN_S:.0f} s"
            raise LimiterUnavailable(f"limiter {self._namespace}/{self._name}: {why}") from None
        if self._settings and sorted(found) != sorted(self._settings):
            raise LimiterMismatch(
                f"limiter {self._namespace}/{self._name} runs with {' '.join(found)}, where {' '.join(self._settings)} "
                "was asked for; attach to it by RayLimiter() without settings"
            )
        return self

    async def __aexit__(self, *_: object) -> None:
        self._actor = None

    def transport(self) -> RayTransport:
        """Transport for sessions of this limiter; it finds the service anew after a restart."""
        return RayTransport(self._name, namespace=self._namespace, security=self._security)

    def client(self, *, name: str = "") -> LimiterClient:
        """A client, as over an address."""
        transport = self.transport()
        return LimiterClient(transport.target, name=name, transport=transport)

    def executor(self, *, executor_id: str = "") -> ExecutorSession:
        """An executor's session, as over an address."""
        transport = self.transport()
        return ExecutorSession(transport.target, executor_id=executor_id, transport=transport)

    async def destroy(self) -> None:
        """Ends the actor for good, and with it the wait of every client. Executors must have stopped their work."""
        await asyncio.to_thread(ray.kill, self._actor, no_restart=True)

    def _attach(self) -> Any:
        if not self._settings:
            try:
                return ray.get_actor(self._name, namespace=self._namespace)
            except ValueError:
                raise LimiterUnavailable(
                    f"there is no limiter {self._namespace}/{self._name}; make it with RayLimiter({{'code': 10}})"
                ) from None
        made = ray.remote(LimiterActor).options(
            name=self._name,
            namespace=self._namespace,
            get_if_exists=True,
            lifetime="detached",
            max_restarts=-1,
            max_task_retries=-1,  # safe: `facts`, its only call, changes nothing
            max_concurrency=64,
            num_cpus=0,
            resources=self._resources,
        )
        return made.remote(self._settings, self._name, self._namespace)
