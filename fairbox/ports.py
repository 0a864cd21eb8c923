"""Ports for servers that are started with a number, and can't be asked which they have got."""

from __future__ import annotations

import contextlib
import random
import socket
from collections import deque
from itertools import islice
from pathlib import Path

__all__ = ["free_port", "free_ports"]

_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_WIDTH = 12_000
_LOWEST = 10_000
"""Below it are the ports of well-known services, ours too."""
_TRIES = 1_000
_given: deque[int] = deque(maxlen=1_000)
"""What this process was given last: whoever asks twice, for two servers, must not get one port for both."""


def free_ports(count: int, host: str = "127.0.0.1") -> list[int]:
    """Different ports of `host` on which nobody listens now.

    They are below those that the kernel takes for connections, where it can be told: a connection that somebody opens
    meanwhile does not take one away. OSError where none are to be found.
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
                found.append(probe.getsockname()[1])
                _given.append(found[-1])
    raise OSError(f"no {count} free ports on {host}")


def free_port(host: str = "127.0.0.1") -> int:
    """One of them."""
    return free_ports(1, host)[0]


def _first_of_kernel() -> int:
    """The lowest port that the kernel takes for connections; 0 where it does not say."""
    try:
        return int(_RANGE.read_text(encoding="ascii").split()[0])
    except (OSError, ValueError, IndexError):
        return 0
