"""What tests of other trainers share. Each package needs an environment of its own, which `make test-interop` makes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from rollout.engines import find_model
from rollout.interop.shared import close_shared
from rollout.stack import LocalStack
from rollout.tokens import ChatTemplate, HubTokenizer


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack() -> AsyncIterator[LocalStack]:
    """A real limiter that lets three programs run at once, and a real executor."""
    async with LocalStack(limiter_args=["buckets.code.max_in_flight=3"]) as stack:
        yield stack
        await close_shared()


@pytest.fixture(scope="session")
def model_dir() -> Path:
    """SmolLM2-135M-Instruct."""
    return find_model("smollm2")


@pytest.fixture(scope="session")
def tokenizer(model_dir: Path) -> HubTokenizer:
    return HubTokenizer(model_dir)


@pytest.fixture(scope="session")
def chat(tokenizer: HubTokenizer) -> ChatTemplate:
    return ChatTemplate(tokenizer)
