"""`fairbox up`: limiter and executor on this machine, until Ctrl-C; with them SandboxFusion's interface, under the same
limit."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from fairbox.config import load, setting
from fairbox.errors import FairboxError
from fairbox.extras import MissingExtra, require
from fairbox.net.ports import free_port, free_ports
from fairbox.net.serving import check_address, run_service, try_port, until_stopped
from fairbox.telemetry.program import TelemetrySettings
from rollout.stack import LocalStack, StackPorts, own_python

LEVELS = ("auto", "namespaces", "landlock")
_GATEWAY = "127.0.0.1:8080"
"""SandboxFusion's own port, which others like too: without a setting, a machine on which it is taken has no gateway."""
_ADDRESSES = ("limiter", "limiter_admin", "executor", "gateway")
"""Settings that are addresses to listen on."""
_MAX_HOLD_S = 3600.0
"""Seconds of a lease that no executor binds: for programs that run at another sandbox (`tool.sandbox_fusion_url`)."""


@dataclass(frozen=True)
class UpConfig(TelemetrySettings):
    """Settings of `fairbox up`; everything else is set on the services themselves."""

    log_level: str = setting("warning", help="Least level that is logged: debug, info, warning or error.")
    max_in_flight: int = setting(10, least=1, help="Most programs in flight at once, over all clients.")
    python: str = setting("", help="Interpreter for programs, which see its packages; empty: that of this command.")
    isolation: str = setting("auto", choices=LEVELS, help="auto: the strongest level that works; or the one that must.")
    min_isolation: str = setting("namespaces", choices=LEVELS[1:], help="Without it `up` does not start.")
    insecure: bool = setting(
        False, help="Listen beyond loopback, as in a container: whoever reaches the ports can run programs."
    )
    limiter: str = setting("127.0.0.1:50052", help="Address that the limiter listens on; port 0: a free one.")
    limiter_admin: str = setting("127.0.0.1:50053", help="Address of the limiter's admin service.")
    executor: str = setting("127.0.0.1:50051", help="Address that the executor listens on; port 0: a free one.")
    gateway: str = setting(_GATEWAY, help="Address of SandboxFusion's HTTP interface; empty: none.")
    limiter_metrics: str = setting("", help="Address of the limiter's metrics, e.g. 127.0.0.1:9465; empty: none.")
    executor_metrics: str = setting("", help="Address of the executor's metrics, e.g. 127.0.0.1:9464; empty: none.")

    def validate(self) -> None:
        """ConfigError naming the setting that is wrong."""
        self.validate_telemetry()
        for name in _ADDRESSES:
            address = getattr(self, name)
            if address or name != "gateway":
                check_address(address, insecure=self.insecure, setting=name)

    def ports(self) -> tuple[StackPorts, str]:
        """Addresses that can be had now, with numbers for ports 0; and why there is no gateway, though no setting said
        so. Raises FairboxError for one that is taken."""
        found, problem = {name: str(getattr(self, name)) for name in _ADDRESSES}, ""
        try:
            if self.gateway:
                require("gateway", "gateway", "aiohttp")
                try_port(self.gateway, "gateway")
        except (MissingExtra, FairboxError) as error:
            if self.gateway != _GATEWAY:
                raise
            found["gateway"], problem = "", str(error)
        for name, address in found.items():
            host, _, port = address.rpartition(":")
            found[name] = f"{host}:{free_port(host.strip('[]'))}" if port == "0" else address
            if address:
                _try(found[name], name)
        limiter_health, executor_health = (f"127.0.0.1:{port}" for port in free_ports(2))  # for this process alone
        return StackPorts(**found, limiter_health=limiter_health, executor_health=executor_health), problem


def main(argv: Sequence[str]) -> int:
    """Entry point; returns the exit code."""
    config = load(UpConfig, prefix="FAIRBOX_UP", prog="fairbox up", description=__doc__ or "", argv=argv)

    async def serve(stop: asyncio.Event) -> None:
        ports, problem = config.ports()
        python, unread = (config.python, "") if config.python else own_python()
        both = [*config.words(), f"log_level={config.log_level}", f"insecure={str(config.insecure).lower()}"]
        stack = LocalStack(
            ports,
            limiter_args=[
                f"buckets.code.max_in_flight={config.max_in_flight}",
                f"buckets.code.max_hold_s={_MAX_HOLD_S:g}",
                f"metrics_listen={config.limiter_metrics}",
                *both,
            ],
            executor_args=[
                f"python={python}",
                f"isolation={config.isolation}",
                f"min_isolation={config.min_isolation}",
                f"metrics_listen={config.executor_metrics}",
                *both,
            ],
        )
        async with stack:
            doors = f"limiter on {ports.limiter}, executor on {ports.executor}"
            if ports.gateway:
                doors += f", SandboxFusion's interface on http://{ports.gateway}/run_code"
            print(f"{doors}; Ctrl-C ends both", file=sys.stderr)
            if unread:
                print(unread, file=sys.stderr)
            if problem:
                print(f"without SandboxFusion's interface: {problem}", file=sys.stderr)
            if stack.no_scope:
                print(f"systemd gives the executor no control group of its own: {stack.no_scope}", file=sys.stderr)
            await until_stopped(stop, _watched(stack))

    return run_service(serve, name="fairbox up")


async def _watched(stack: LocalStack) -> None:
    """Raises FairboxError when a service has ended."""
    raise FairboxError(await stack.until_ended())


def _try(address: str, name: str) -> None:
    try:
        try_port(address, name)
    except FairboxError as error:
        raise FairboxError(
            f"{error}; perhaps another `fairbox up` runs: `fairbox status` tells. {name}=127.0.0.1:0 takes a free port"
        ) from None
