"""The isolation levels that this machine can offer, each as a way to start a server."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass

from tests.executor.servers import Server, running

__all__ = ["LEVELS", "Level"]


@dataclass(frozen=True)
class Level:
    """A level, and who the server is."""

    name: str
    who: str

    def __str__(self) -> str:
        return f"{self.name}-{self.who}"

    @contextlib.contextmanager
    def running(self, *settings: str) -> Iterator[Server]:
        with running(*settings) as server:
            yield server


LEVELS = [Level("namespaces", "root" if os.geteuid() == 0 else "user")]
