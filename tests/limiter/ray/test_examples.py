"""The examples of docs/how-to/limiter.md run as they are written."""

from __future__ import annotations

import asyncio
import os
import re
import sys

from tests.limiter.ray.cluster import RayCluster
from tests.limiter.servers import ROOT, limiter_server

DOCS = (ROOT / "docs" / "how-to" / "limiter.md").read_text()


def example(heading: str) -> str:
    """The program below a heading."""
    found = re.search(rf"^## {re.escape(heading)}.*?```python\n(.*?)```", DOCS, re.DOTALL | re.MULTILINE)
    assert found is not None
    return found[1]


async def output(source: str, **environment: str) -> str:
    """Output of a program."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        source,
        cwd=ROOT,
        env=os.environ | environment,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, errors = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 0, errors.decode()
    return out.decode()


async def test_example_on_ray(cluster: RayCluster) -> None:
    said = await output(example("On Ray"), RAY_ADDRESS=cluster.address)
    assert re.search(r"^granted code/\d+\.1$", said, re.MULTILINE)
    from limiter.ray import RayLimiter

    async with RayLimiter() as limiter:
        await limiter.destroy()


async def test_example_of_the_pool() -> None:
    async with limiter_server() as server:
        source = example("Functions under a lease").replace("127.0.0.1:50052", server.address)
        assert server.address in source
        assert await output(source) == "9\n"
