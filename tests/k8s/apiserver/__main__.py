"""`python -m tests.k8s.apiserver KUBECONFIG [VERSION]`: serves until it is interrupted."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from tests.k8s.apiserver.server import ApiServer


async def _serve(path: Path, *version: str) -> None:
    async with ApiServer(*version) as server:
        server.kubeconfig(path)
        print(f"export KUBECONFIG={path}   # {server.url}, Kubernetes {server.version}", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    try:
        asyncio.run(_serve(Path(sys.argv[1]), *sys.argv[2:3]))
    except KeyboardInterrupt:
        sys.exit(0)
