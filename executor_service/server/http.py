"""The two ways in which HTTP comes in: the gateway for SandboxFusion's clients, and a remote sandbox in place of ours.

Both need the extra `gateway`, which is imported only where the configuration asks for one of them.
"""

from __future__ import annotations

import contextlib
import logging
import ssl
from collections.abc import AsyncIterator

from executor_service.config import ExecutorConfig
from executor_service.model import IsolationLevel
from executor_service.server.levels import LevelFacts
from executor_service.server.probe import Capabilities, LanguageFacts
from executor_service.server.runs import Runs
from executor_service.server.work import Work
from executor_service.validation import validate
from fairbox.clock import Clock
from fairbox.errors import ConfigError

__all__ = ["open_gateway", "open_remote"]

_LOG = logging.getLogger("executor_service")


@contextlib.asynccontextmanager
async def open_gateway(
    config: ExecutorConfig, runs: Runs, installed: frozenset[str], name: str, tls: ssl.SSLContext | None
) -> AsyncIterator[None]:
    """Listens for SandboxFusion's clients. `name` is this server's in replies. `tls` None: it speaks plain HTTP."""
    try:
        # Here, because aiohttp and pydantic are needed by no other part of the executor.
        from executor_service.gateway import Executions, Gateway
        from executor_service.gateway.handlers import handlers
        from fairbox.tokens import read_token
    except ImportError as error:
        raise ConfigError(f"gateway_listen is set, which needs the extra `gateway`: {error}") from None
    policy = config.policy()
    token = read_token(config.gateway_token_file, "gateway_token_file")
    executions = Executions(runs, lambda request: validate(request, installed=installed, policy=policy))
    answers = handlers(executions, languages=installed, name=name, queue_s=config.gateway_queue_timeout_s)
    gateway = Gateway(
        config.gateway_listen,
        answers,
        token=token,
        max_body_bytes=config.gateway_max_body_bytes,
        insecure=config.insecure,
        tls=tls,
    )
    async with executions, gateway:
        _LOG.info("gateway on %s", gateway.address)
        yield


@contextlib.asynccontextmanager
async def open_remote(config: ExecutorConfig, clock: Clock, name: str) -> AsyncIterator[tuple[Work, Capabilities]]:
    """A sandbox elsewhere, after one program has run there. Which languages it has is not known: all are tried."""
    try:
        from executor_service.remote.backend import RemoteSandbox
    except ImportError as error:
        raise ConfigError(f"backend is remote, which needs the extra `gateway`: {error}") from None
    sandbox = RemoteSandbox(config.sandbox_fusion_url, clock, name=name, policy=config.policy())
    async with sandbox:
        await sandbox.probe()
        reason = f"programs run at {sandbox.place}"
        offered = sorted(spec.name for spec in config.offered())
        yield (
            sandbox,
            Capabilities(
                tuple(LevelFacts(level, available=False, reason=reason) for level in reversed(IsolationLevel)),
                tuple(LanguageFacts(language, installed=True, version=reason) for language in offered),
                IsolationLevel.NONE,
            ),
        )
