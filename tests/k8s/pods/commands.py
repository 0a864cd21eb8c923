"""Runs a command to its end, within a time, without holding up the event loop."""

from __future__ import annotations

import asyncio
import contextlib

__all__ = ["CommandError", "run"]

WITHIN_S = 60.0
"""podman answers in a second; this is for machines in trouble."""


class CommandError(Exception):
    """It failed; the text has its words and what it said."""


async def run(*words: str, stdin: str | None = None, within_s: float = WITHIN_S) -> str:
    """What it printed. CommandError where it failed or did not end in time; then it is killed."""
    process = await asyncio.create_subprocess_exec(
        *words,
        stdin=asyncio.subprocess.PIPE if stdin is not None else asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(within_s):
            out, err = await process.communicate(stdin.encode() if stdin is not None else None)
    except BaseException as error:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        if isinstance(error, TimeoutError):
            raise CommandError(f"{' '.join(words)}: not ended after {within_s:g} s") from None
        raise
    if process.returncode != 0:
        raise CommandError(f"{' '.join(words)}: exit code {process.returncode}: {err.decode(errors='replace').strip()}")
    return out.decode(errors="replace")
