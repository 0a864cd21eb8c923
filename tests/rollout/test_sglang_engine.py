"""The sglang engine at a real server: the contract of all engines, and what only sglang promises."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from rollout.dump_check import check_dump
from rollout.engines import EngineUnavailable, GenerationRequest, SamplingParams
from rollout.engines.http import EngineHttp
from rollout.engines.sglang.engine import SglangEngine
from rollout.engines.sglang.launch import local_servers
from rollout.tokens import ChatTemplate
from tests.rollout.engine_contract import (
    CLOSE,
    QUESTIONS,
    EngineContract,
    idle,
    plain_model,
    prompt,
    request,
    running,
    sampling,
)
from tests.rollout.sglang_servers import ROOT, on_cpu

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.sglang, pytest.mark.timeout(900)]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def url(model_dir: Path) -> AsyncIterator[str]:
    async with local_servers(on_cpu(model_dir)) as urls:
        yield urls["replica-0"]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(url: str) -> AsyncIterator[SglangEngine]:
    async with SglangEngine(url, vocab_size=49152) as engine:
        yield engine


@pytest.fixture
def open_engine(url: str) -> Callable[[], SglangEngine]:
    return lambda: SglangEngine(url, vocab_size=49152)


@pytest.fixture(scope="module")
def initial_version() -> str:
    return "default"


@pytest.fixture(scope="module")
def reference(model_dir: Path) -> Any:
    return plain_model(model_dir)


class TestTurns(EngineContract):
    """As every engine."""


async def loads(url: str) -> int:
    """Requests that run or wait at the server."""
    async with EngineHttp(url) as server:
        answer = await server.get("/v1/loads", timeout_s=30)
    return sum(int(load["num_running_reqs"]) + int(load["num_waiting_reqs"]) for load in answer["loads"])


async def test_cancelled_turns_end_at_the_server_too(engine: SglangEngine, url: str, chat: ChatTemplate) -> None:
    ids = prompt(chat, QUESTIONS[2])
    async with sampling(engine, *(request(ids, max_new_tokens=900) for _ in range(3))):
        kept = asyncio.ensure_future(engine.generate(request(ids, max_new_tokens=12, temperature=0)))
        await running(engine, 4)
        ended = engine.statistics().finished
    assert len((await kept).ids) == 12
    assert engine.statistics().finished == ended + 1
    await idle(engine)
    async with asyncio.timeout(60):
        while await loads(url):
            await asyncio.sleep(0.2)


async def test_turn_that_another_client_aborts_goes_on(engine: SglangEngine, url: str, chat: ChatTemplate) -> None:
    asked = request(prompt(chat, QUESTIONS[2]), max_new_tokens=24, temperature=0)
    task = asyncio.ensure_future(engine.generate(asked))
    await running(engine, 1)
    async with EngineHttp(url) as other:
        await other.post("/abort_request", {"abort_all": True}, timeout_s=30)
    interrupted = await task
    undisturbed = await engine.generate(request(asked.input_ids, max_new_tokens=24, temperature=0))
    assert interrupted.ids == undisturbed.ids


async def test_waiting_too_long_is_the_engines_failure(engine: SglangEngine, chat: ChatTemplate) -> None:
    ids = prompt(chat, QUESTIONS[2])
    busy = [request(ids, max_new_tokens=300) for _ in range(16)]  # as many as the server runs at once
    async with sampling(engine, *busy):
        late = GenerationRequest("0" * 32, "t", ids, SamplingParams(max_new_tokens=1), queue_timeout_s=2.0)
        with pytest.raises(EngineUnavailable, match=r"waited .* s in the engine's queue|no answer in time"):
            await engine.generate(late)


async def test_rollouts_with_tools_are_exact(url: str, model_dir: Path, tmp_path: Path) -> None:
    words = [sys.executable, "-m", "rollout.cli", "rollout", "--up", "n=2", f"out={tmp_path / 'out'}"]
    words += ["engine.kind=sglang", f"engine.urls=[{url}]", "limits.max_turns=2", "limits.max_turn_tokens=96"]
    done = await asyncio.to_thread(
        subprocess.run, words, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr
    found = await asyncio.to_thread(check_dump, tmp_path / "out" / "1.jsonl", model_dir)
    assert found.problems == ()
    assert found.sampled_tokens > 10
    assert found.max_logprob_difference < CLOSE, found.worst
    assert "2 of 2 rollouts" in done.stdout


async def test_server_says_what_it_is(engine: SglangEngine) -> None:
    assert (engine.weight_version, engine.max_model_tokens) == ("default", 2042)
    assert await engine.check_health() == "default"
    assert engine.model_name == "SmolLM2-135M-Instruct"


async def test_server_whose_logprobs_ignore_the_temperature_is_refused(tiny_dir: Path, other_tiny_dir: Path) -> None:
    async with local_servers(on_cpu(tiny_dir, SGLANG_RETURN_ORIGINAL_LOGPROB="1")) as urls:
        with pytest.raises(EngineUnavailable, match="logprobs don't follow the temperature"):
            async with SglangEngine(urls["replica-0"], vocab_size=49152):
                pass
