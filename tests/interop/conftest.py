"""Fixtures that tests of other trainers share. Each package needs an environment of its own, which `make test-interop`
makes."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

from rollout.interop.shared import close_shared
from rollout.stack import LocalStack
from tests.rollout.conftest import chat, model_dir, tokenizer

__all__ = ["chat", "model_dir", "stack", "tokenizer"]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack() -> AsyncIterator[LocalStack]:
    """A real limiter that lets three programs run at once, and a real executor."""
    async with LocalStack(limiter_args=["buckets.code.max_in_flight=3"]) as stack:
        yield stack
        await close_shared()
