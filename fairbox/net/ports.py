"""Ports for servers that are started with a number, and can't be asked which they have got."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import socket
from collections import deque
from itertools import islice
from pathlib import Path

_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_WIDTH = 12_000
_LOWEST = 10_000
"""Below it are the ports of well-known services, ours too."""
_TRIES = 1_000
_given: deque[int] = deque(maxlen=1_000)
"""Ports that this process got last: whoever asks twice, for two servers, must not get one port for both."""
_CLAIMS = 64
"""Servers that a process starts at once, at most: of more, the first have taken their ports meanwhile."""
_claims: dict[int, int] = {}
"""Last ports that this process got, each with the descriptor that keeps other processes from getting it."""


def free_ports(count: int, host: str = "127.0.0.1") -> list[int]:
    """Different ports of `host` on which nobody listens now.

    They are below those that the kernel takes for connections, where it can be told: a connection that somebody opens
    meanwhile does not take one away. No other process that asks here is given one of the last that this one was given.
    OSError where none are to be found.
    """
    below = _first_of_kernel()
    choices = range(max(_LOWEST, below - _WIDTH), below)
    with contextlib.ExitStack() as held:
        found: list[int] = []
        for _ in range(_TRIES):
            if len(found) == count:
                return found
            port = random.choice(choices) if choices else 0  # noqa: S311 - no secret
            if port in islice(reversed(_given), len(choices) // 2):
                continue
            probe = held.enter_context(socket.socket())
            with contextlib.suppress(OSError):
                probe.bind((host, port))
                taken: int = probe.getsockname()[1]
                if _claim(taken):
                    found.append(taken)
                    _given.append(taken)
    raise OSError(f"no {count} free ports on {host}")


def free_port(host: str = "127.0.0.1") -> int:
    """One of them."""
    return free_ports(1, host)[0]


def _claim(port: int) -> bool:
    """Claims the port; False if another process holds a claim on it.

    A claim is a name that the kernel knows, in the port's network, until the process ends or forgets it.
    """
    if (handle := _claims.pop(port, None)) is None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as claim:
            try:
                claim.bind(f"\0fairbox/port/{port}")
            except OSError as error:
                return error.errno != errno.EADDRINUSE
            handle = claim.detach()
    _claims[port] = handle
    if len(_claims) > _CLAIMS:
        os.close(_claims.pop(next(iter(_claims))))
    return True


def _first_of_kernel() -> int:
    """The lowest port that the kernel takes for connections; 0 where it does not say."""
    try:
        return int(_RANGE.read_text(encoding="ascii").split()[0])
    except (OSError, ValueError, IndexError):
        return 0
