"""Parts that hostile programs share: a list of attempts, and a record of those that succeeded."""

from __future__ import annotations

from executor_service import ExecutorClient, Limits, Outcome
from tests.executor.servers import SLOWNESS

SECRET = "server-secret-7c2e"
"""In the environment of every server under attack."""
MARKER = "98765.4321"
"""Seconds that processes sleep who are to be gone with their run."""

_BEGINNING = """
import ctypes, errno, fcntl, os, resource, signal, socket, stat, struct, subprocess, sys, time
libc = ctypes.CDLL(None, use_errno=True)
def attempt(name, what):
    try: what()
    except Exception as error: print("-", name, repr(error))
    else: print("+", name)
def call(name, *args):
    # A system call by its number, or a function of the C library; fails by raising.
    result = libc.syscall(name, *args) if isinstance(name, int) else getattr(libc, name)(*args)
    if result == -1: raise OSError(ctypes.get_errno(), str(name))
    return result
"""
LONG = Limits(wall_time_s=60 * SLOWNESS)
"""For programs that do more than a busy machine does in the usual time."""


async def printed(executor: ExecutorClient, code: str, **options: object) -> str:
    """Returns the output of a program that must end well."""
    result = await executor.execute(_BEGINNING + code, **options)  # type: ignore[arg-type]
    assert result.outcome is Outcome.FINISHED, result
    return result.stdout.text


async def possible(executor: ExecutorClient, code: str, **options: object) -> set[str]:
    """Names of the attempts in `code` that succeeded. Each must have been made."""
    lines = (await printed(executor, code, **options)).splitlines()
    assert {line.split()[0] for line in lines} <= {"+", "-"}, lines
    assert len(lines) == code.count("attempt(") or "for " in code, lines
    return {line.split()[1] for line in lines if line.startswith("+")}


def table(text: str) -> dict[str, str]:
    """Programs by the name that stands in a line `=== name` above each."""
    parts = (part.partition("\n") for part in text.split("\n=== ")[1:])
    return {name: program.strip("\n") for name, _, program in parts}
