"""One client for a whole process and event loop, whoever in it asks: libraries need not pass one to each other.

Invariants: all who use a target in one loop share one session and one channel; it is made by the first and closed by
the last; nothing made before a fork, or in another loop, is ever given to anybody.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from fairbox.security import ClientSecurity
from limiter.client.client import LimiterClient

__all__ = ["shared_client"]


@dataclass(slots=True, eq=False)
class _Shared:
    client: LimiterClient
    users: int = 0


_Key = tuple[int, str, ClientSecurity | None]
_clients: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[_Key, _Shared]] = WeakKeyDictionary()
"""By loop; then by process, because a forked child inherits the rest, and target."""


@asynccontextmanager
async def shared_client(target: str, security: ClientSecurity | None = None) -> AsyncIterator[LimiterClient]:
    """`async with shared_client("127.0.0.1:50052") as limiter, limiter.lease() as lease: ...`

    The client of this process and event loop for `target` with that `security` (see `LimiterClient`). Leaving the block
    of its last user closes it, so keep one block open around all the work, and enter others wherever that is handy.
    """
    here = _clients.setdefault(asyncio.get_running_loop(), {})
    key = (os.getpid(), target, security)
    shared = here.get(key)
    if shared is None:
        shared = here[key] = _Shared(await LimiterClient(target, security=security).__aenter__())  # which does not wait
    shared.users += 1
    try:
        yield shared.client
    finally:
        shared.users -= 1
        if not shared.users:
            del here[key]
            await asyncio.shield(shared.client.__aexit__(None, None, None))
