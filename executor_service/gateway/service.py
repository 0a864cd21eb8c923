"""Gateway for SandboxFusion's clients.

Needs the extra `gateway`, which is imported only if the configuration asks for it.
"""

from __future__ import annotations

import contextlib
import logging
import ssl
from collections.abc import AsyncIterator, Collection

from executor_service.config import ExecutorConfig
from executor_service.runs.queue import ExecutionQueue
from executor_service.sessions.displayed import DisplayedPrograms
from executor_service.wire.validation import validate
from fairbox.extras import require
from fairbox.security import Role
from fairbox.security.tokens import Keyring

_LOG = logging.getLogger("executor_service")


@contextlib.asynccontextmanager
async def open_gateway(
    config: ExecutorConfig,
    runs: ExecutionQueue,
    boxed: DisplayedPrograms,
    installed: Collection[str],
    name: str,
    tls: ssl.SSLContext | None,
) -> AsyncIterator[None]:
    """Listens for SandboxFusion's clients. `boxed` runs cells; `name` is this server's in replies. `tls` None: it
    speaks plain HTTP."""
    require("gateway_listen", "gateway", "aiohttp")
    # Here, because no other part of the executor needs aiohttp.
    from executor_service.gateway.executions import Executions
    from executor_service.gateway.handlers import handlers
    from executor_service.gateway.server import Gateway

    policy = config.policy()
    keyring = None
    if path := config.gateway_token_file:
        keyring = Keyring({Role.CLIENT: path}, setting="gateway_token_file")
    executions = Executions(runs, lambda request: validate(request, installed=installed, policy=policy))
    queue_s = config.gateway_queue_timeout_s
    answers = handlers(executions, boxed, languages=installed, name=name, queue_s=queue_s)
    gateway = Gateway(
        config.gateway_listen,
        answers,
        keyring=keyring,
        insecure=config.insecure,
        tls=tls,
    )
    async with gateway:
        _LOG.info("gateway on %s", gateway.address)
        yield
