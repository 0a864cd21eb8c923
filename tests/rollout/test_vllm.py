"""The adapter for vLLM: its requests and its reading of streams; and, where a server is given, vLLM itself."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from hypothesis import given, settings
from hypothesis import strategies as st

from fairbox.errors import FieldErrors
from rollout.config import EngineSettings
from rollout.engine_choice import make_engine
from rollout.engines import EngineUnavailable, FinishReason, GenerationRequest, ReplicatedEngine, SamplingParams
from rollout.engines.events import EventSplitter, event_of
from rollout.engines.replicas import placement
from rollout.engines.vllm.api import LogprobsMode, TurnReader, check_exact, completion_body, longest_context
from rollout.engines.vllm.engine import VllmEngine

STOP = 2


def request(ids: tuple[int, ...] = (5, 6), *, time_limit_s: float | None = None, **params: Any) -> GenerationRequest:
    values: dict[str, Any] = {"max_new_tokens": 4, "stop_token_ids": (STOP,)} | params
    name = uuid.uuid4().hex
    return GenerationRequest(name, "t", ids, SamplingParams(**values), queue_timeout_s=30, time_limit_s=time_limit_s)


def event(ids: list[int], *, finish: str | None = None, prompt: list[int] | None = None, **change: Any) -> bytes:
    """An event as vLLM writes it."""
    logprobs = {"token_logprobs": [-0.1 * i for i in ids], "tokens": [f"token_id:{i}" for i in ids]}
    choice = {"index": 0, "text": "", "logprobs": logprobs, "finish_reason": finish, "stop_reason": None}
    choice |= {"token_ids": ids, "prompt_token_ids": prompt} | change
    return b"data: " + json.dumps({"id": "c", "object": "text_completion", "choices": [choice]}).encode() + b"\n\n"


USAGE = b'data: {"choices": [], "usage": {"prompt_tokens": 2, "prompt_tokens_details": {"cached_tokens": 1}}}\n\n'
DONE = b"data: [DONE]\n\n"
TURN = event([7], prompt=[5, 6]) + event([8, 9]) + event([STOP], finish="stop") + USAGE + DONE


def read(*pieces: bytes) -> TurnReader:
    """Turn in a stream that arrives in these pieces."""
    asked, splitter = request(), EventSplitter(1 << 20)
    found = TurnReader(asked.input_ids, asked.params, vocab_size=100)
    for piece in pieces:
        for payload in splitter.feed(piece):
            found.add(event_of(payload))
    return found


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, len(TURN)), max_size=6))
def test_turn_is_the_same_wherever_the_stream_is_cut(cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(TURN)]
    found = read(*(TURN[start:end] for start, end in itertools.pairwise(edges)))
    assert found.done
    assert (found.ids, found.finish, found.cached_tokens) == ([7, 8, 9, STOP], FinishReason.STOP, 1)
    assert found.logprobs == pytest.approx([-0.7, -0.8, -0.9, -0.2])


@pytest.mark.parametrize(
    ("stream", "problem"),
    [
        (event([7], prompt=[5, 7]), "other ids than it was given"),
        (event([7], token_ids=None), "needs vLLM 0.10.2"),
        (event([7], logprobs=None), "1 ids with 0 logprobs"),
        (event([7], logprobs={"token_logprobs": [None]}), "without its logprob"),
        (event([7], logprobs={"token_logprobs": [-9999.0]}), "without its logprob"),
        (event([7], logprobs={"token_logprobs": [float("nan")]}), "without its logprob"),
        (event([7] * 5), "more than 4 ids"),
        (event([-1]), "that its model does not have"),
        (event([7, 100]), "that its model does not have"),
        (event([7], finish="stop"), "not asked for: 'stop'"),
        (event([7], finish="length"), "not asked for: 'length'"),
        (event([7], finish="abort"), "not asked for: 'abort'"),
        (b'data: {"error": {"message": "out of memory"}}\n\n', "vLLM failed: out of memory"),
        (b"data: {\n\n", "can't be read"),
        (b"data: [1]\n\n", "can't be read"),
        pytest.param(b"data: " + b"[" * 100_000 + b"\n\n", "can't be read", id="deep"),
        (event([7]) + DONE, "before the turn was complete"),
    ],
)
def test_stream_that_can_be_no_turn_is_a_failure_of_the_engine(stream: bytes, problem: str) -> None:
    with pytest.raises(EngineUnavailable, match=problem):
        read(stream)


def test_request_says_everything_that_a_server_could_set_otherwise() -> None:
    body = completion_body(request(temperature=0.5, seed=3), model="m")
    assert (body["prompt"], body["max_tokens"], body["seed"], body["temperature"]) == ([5, 6], 4, 3, 0.5)
    assert (body["stop_token_ids"], body["ignore_eos"]) == ([STOP], True)
    assert (body["logprobs"], body["return_token_ids"], body["stream"]) == (0, True, True)
    neutral = {
        "min_p": 0,
        "repetition_penalty": 1,
        "presence_penalty": 0,
        "frequency_penalty": 0,
        "top_k": 0,
        "top_p": 1,
    }
    assert {name: body[name] for name in neutral} == neutral
    assert "seed" not in completion_body(request(), model="m")


@pytest.mark.parametrize(
    ("mode", "params", "field"),
    [
        (LogprobsMode.RAW, {"temperature": 0.7}, "params.temperature"),
        (LogprobsMode.PROCESSED, {"temperature": 0.001}, "params.temperature"),
        (LogprobsMode.PROCESSED, {"top_p": 0.9}, "params.top_p"),
        (LogprobsMode.PROCESSED, {"top_k": 5}, "params.top_k"),
        (LogprobsMode.RAW, {"top_p": 0.9, "temperature": 1.0}, None),
        (LogprobsMode.RAW, {"temperature": 0.0}, None),
        (LogprobsMode.PROCESSED, {"temperature": 0.7}, None),
        (LogprobsMode.PROCESSED, {"temperature": 0.0, "top_p": 0.5}, None),
    ],
)
def test_sampling_with_other_logprobs_is_refused(mode: LogprobsMode, params: dict[str, Any], field: str | None) -> None:
    if field is None:
        check_exact(SamplingParams(**params), mode)
        return
    with pytest.raises(FieldErrors) as caught:
        check_exact(SamplingParams(**params), mode)
    assert [error.field for error in caught.value.errors] == [field]


def test_model_is_the_only_one() -> None:
    one = {"data": [{"id": "a", "max_model_len": 8}]}
    two = {"data": [*one["data"], {"id": "b", "max_model_len": 8}]}
    assert longest_context(one) == ("a", 8)
    bodies: list[Any] = [two, {"data": [{"id": "b"}]}, {"data": []}, {}, []]
    for body in bodies:
        with pytest.raises(EngineUnavailable):
            longest_context(body)


LONG_ERROR = json.dumps({"error": {"message": "out of memory"}, "at": ["a line"] * 10_000})
Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


@contextlib.asynccontextmanager
async def listening(
    answer: Answer, serves: Callable[[], str] = lambda: "m", port: int = 0, more: Any = None
) -> AsyncIterator[str]:
    """Address of a server that answers completions with `answer`: HTTP as it can go, not vLLM."""

    async def models(_: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": serves(), "max_model_len": 64}], "more": more})

    application = web.Application()
    application.router.add_get("/v1/models", models)
    application.router.add_post("/v1/completions", answer)
    runner = web.AppRunner(application, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", port)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@contextlib.asynccontextmanager
async def served(answer: Answer) -> AsyncIterator[VllmEngine]:
    async with listening(answer) as url, VllmEngine(url, vocab_size=100) as engine:
        yield engine


async def test_turn_comes_over_http_and_statistics_return_to_zero() -> None:
    bodies = []

    async def answer(got: web.Request) -> web.StreamResponse:
        bodies.append(await got.json())
        return web.Response(body=TURN)

    async with served(answer) as engine:
        assert (engine.model_name, engine.max_model_tokens) == ("m", 64)
        result = await engine.generate(request())
        assert (result.ids, result.finish, result.cached_tokens) == ((7, 8, 9, STOP), FinishReason.STOP, 1)
        assert [(span.version, span.start, span.end) for span in result.versions] == [("initial", 0, 4)]
        for bad in (request((500,)), request(max_new_tokens=64), request(temperature=0.5)):
            with pytest.raises(FieldErrors):
                await engine.generate(bad)
        assert len(bodies) == 1
        found = engine.statistics()
        assert (found.queued, found.running, found.finished, found.sampled_tokens) == (0, 0, 1, 4)
    with pytest.raises(EngineUnavailable):
        await engine.generate(request())


@pytest.mark.parametrize(
    "large",
    [
        b'data: {"choices": [' + b"[]," * 4_000_000 + b"[]]}\n\n",
        b'data: {"choices": [{"token_ids": [' + b"1000000," * 1_400_000 + b"1]}]}\n\n",
        b'data: {"error": {"message": {' + b",".join(b'"%d": 1' % n for n in range(900_000)) + b"}}}\n\n",
    ],
    ids=["lists", "ids", "error"],
)
async def test_large_events_are_not_read_on_the_event_loop(large: bytes) -> None:
    """By the CPU time of its thread between two turns: `json.loads` would take 0.2 to 2 s of it."""

    async def answer(got: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(got)
        for start in range(0, len(large), 65536):
            await response.write(large[start : start + 65536])
        return response

    async with served(answer) as engine:
        asked = asyncio.ensure_future(engine.generate(request()))
        longest, last = 0.0, time.thread_time()
        while not asked.done():
            await asyncio.sleep(0)
            longest, last = max(longest, time.thread_time() - last), time.thread_time()
        with pytest.raises(EngineUnavailable):
            await asked
    assert longest < 0.1


async def test_a_refusal_whose_text_never_ends_is_one_after_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rollout.engines.http._REFUSAL_S", 0.3)

    async def answer(got: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(status=500)
        await response.prepare(got)
        await response.write(b"oh")
        await asyncio.sleep(60)
        return response

    async with served(answer) as engine:
        with pytest.raises(EngineUnavailable, match="/v1/completions: no answer in time"):
            await asyncio.wait_for(engine.generate(request()), 20)


async def test_time_limit_returns_what_there_is_and_ends_the_generation() -> None:
    ended = asyncio.Event()

    async def answer(got: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(got)
        await response.write(event([7], prompt=[5, 6]) + event([8]))
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()
        return response

    async with served(answer) as engine:
        result = await engine.generate(request(time_limit_s=0.2))
        assert (result.ids, result.finish) == ((7, 8), FinishReason.ABORT)
        await asyncio.wait_for(ended.wait(), 30)
        ended.clear()
        running = asyncio.ensure_future(engine.generate(request()))
        async with asyncio.timeout(30):
            while not engine.statistics().running:
                await asyncio.sleep(0.01)
            running.cancel()
            await ended.wait()
        assert engine.statistics().running == engine.statistics().queued == 0
        assert engine.statistics().aborted == 1


@pytest.mark.parametrize(
    ("status", "body", "kind", "text"),
    [
        (400, '{"error": {"message": "too long"}}', FieldErrors, "request was refused by vLLM: too long"),
        (500, "oops", EngineUnavailable, "HTTP 500: oops"),
        (429, "{}", EngineUnavailable, "HTTP 429"),
        pytest.param(500, "[" * 100_000, EngineUnavailable, r"HTTP 500: \[\[", id="deep"),
        pytest.param(500, LONG_ERROR, EngineUnavailable, "HTTP 500: out of memory", id="long"),
    ],
)
async def test_statuses_become_typed_errors(status: int, body: str, kind: type[Exception], text: str) -> None:
    async def answer(_: web.Request) -> web.StreamResponse:
        return web.Response(status=status, text=body)

    async with served(answer) as engine:
        with pytest.raises(kind, match=text):
            await engine.generate(request())


@pytest.mark.parametrize("more", [json.loads("[" * 100 + "]" * 100), [1] * 1_000_000], ids=["deep", "many values"])
async def test_lists_of_models_are_bounded(more: list[Any]) -> None:
    async def answer(_: web.Request) -> web.StreamResponse:
        raise NotImplementedError

    async with listening(answer, more=more) as url:
        with pytest.raises(EngineUnavailable, match="models can't be read"):
            await VllmEngine(url, vocab_size=10).__aenter__()


async def test_each_server_that_is_not_there_is_named_once(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"vocab_size": 100}))
    urls = [f"http://127.0.0.1:{port}" for port in (1, 2)]
    with pytest.raises(EngineUnavailable) as raised:
        await make_engine(EngineSettings(kind="vllm", urls=urls), tmp_path).__aenter__()
    said = [f"{url}/v1/models: Connection refused; start the server, or set engine.urls to its address" for url in urls]
    assert str(raised.value) == f"no replica answers: {said[0]}; {said[1]}"


async def test_broken_and_missing_servers_are_unavailable() -> None:
    async def answer(got: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(got)
        await response.write(event([7]))
        assert got.transport is not None
        got.transport.abort()
        return response

    async with served(answer) as engine:
        with pytest.raises(EngineUnavailable, match=r"127\.0\.0\.1:\d+: Client"):
            await engine.generate(request())

    async def unfinished(_: web.Request) -> web.StreamResponse:
        return web.Response(body=event([7, STOP], finish="stop"))

    async with served(unfinished) as engine:
        with pytest.raises(EngineUnavailable, match="the answer ended before the turn did"):
            await engine.generate(request())
    with pytest.raises(EngineUnavailable, match=r"http://127\.0\.0\.1:1/v1/models: Connection refused; start"):
        await VllmEngine("http://127.0.0.1:1", vocab_size=10).__aenter__()


async def test_several_servers_are_one_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A turn that one fails is sampled by another; one that comes back with another model gets none."""
    for name in ("PROBE_BACKOFF_S", "PROBE_EVERY_S"):
        monkeypatch.setattr(placement, name, 0.05)
    (tmp_path / "config.json").write_text(json.dumps({"vocab_size": 100}))
    asked, models = dict[str, int](), {"a": "m", "b": "m"}

    def server(name: str) -> contextlib.AbstractAsyncContextManager[str]:
        async def answer(_: web.Request) -> web.StreamResponse:
            asked[name] = asked.get(name, 0) + 1
            return web.Response(status=503) if name == "a" and models["a"] == "m" else web.Response(body=TURN)

        return listening(answer, lambda: models[name])

    async with (
        server("a") as a,
        server("b") as b,
        make_engine(EngineSettings(kind="vllm", urls=[a, b]), tmp_path) as engine,
    ):
        assert isinstance(engine, ReplicatedEngine)
        assert (await engine.generate(request())).ids == (7, 8, 9, STOP)
        assert asked == {"a": 1, "b": 1}
        models["a"] = "another"
        async with asyncio.timeout(20):
            while "serves another with 64 tokens, not m with 64 as before" not in engine.replicas()[0].last_error:
                await asyncio.sleep(0.01)
        await asyncio.gather(*(engine.generate(request()) for _ in range(8)))
    assert asked == {"a": 1, "b": 9}


async def test_turns_wait_for_one_that_is_started_again_but_not_each_for_as_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(placement, "PROBE_BACKOFF_S", 0.05)
    (tmp_path / "config.json").write_text(json.dumps({"vocab_size": 100}))

    async def answer(_: web.Request) -> web.StreamResponse:
        return web.Response(body=TURN)

    async with contextlib.AsyncExitStack() as stack:
        async with listening(answer) as url:
            settings_of = EngineSettings(kind="vllm", urls=[url])
            engine = await stack.enter_async_context(make_engine(settings_of, tmp_path))
        waiting = asyncio.create_task(engine.generate(request()))
        while engine.statistics().queued < 1:
            await asyncio.sleep(0.01)
        async with listening(answer, port=int(url.rpartition(":")[2])):
            assert (await waiting).ids == (7, 8, 9, STOP)
        assert isinstance(engine, ReplicatedEngine)
        with pytest.raises(EngineUnavailable, match=r"no replica was ready in time: http.* is down: .*refused"):
            await engine.generate(replace(request(), queue_timeout_s=0.5))
        balancer = engine._balancer
        monkeypatch.setattr(balancer, "_away_since", engine._clock.now() - 1000)
        with pytest.raises(EngineUnavailable, match="no replica was ready in time"):
            await engine.generate(replace(request(), queue_timeout_s=600))  # which it does not wait for again


@pytest.fixture
async def real() -> AsyncIterator[VllmEngine]:
    url = os.environ.get("FAIRBOX_VLLM_URL")
    if not url:
        pytest.skip("no vLLM is here: set FAIRBOX_VLLM_URL to a server with --logprobs-mode processed_logprobs")
    async with VllmEngine(url, vocab_size=1000, logprobs_mode=LogprobsMode.PROCESSED) as engine:
        yield engine


async def test_vllm_keeps_the_contract(real: VllmEngine) -> None:
    """Lengths, bounds, seeds, stop ids and the end of what is cancelled, on a real server."""
    ids = (9, 10, 11, 12)
    whole = await real.generate(request(ids, max_new_tokens=16, stop_token_ids=(), temperature=0.8, seed=1))
    again = await real.generate(request(ids, max_new_tokens=16, stop_token_ids=(), temperature=0.8, seed=1))
    assert len(whole.ids) == len(whole.logprobs) == 16
    assert whole.finish is FinishReason.LENGTH
    assert all(logprob <= 0 for logprob in whole.logprobs)
    assert again.ids == whole.ids
    stop = whole.ids[5]
    cut = await real.generate(request(ids, max_new_tokens=16, stop_token_ids=(stop,), temperature=0.8, seed=1))
    assert cut.ids == whole.ids[: whole.ids.index(stop) + 1]
    assert cut.finish is FinishReason.STOP
    greedy = [await real.generate(request(ids, max_new_tokens=8, stop_token_ids=(), temperature=0)) for _ in range(2)]
    assert greedy[0].ids == greedy[1].ids
    timed = await real.generate(request(ids, max_new_tokens=1024, stop_token_ids=(), time_limit_s=0.05))
    assert timed.finish in (FinishReason.ABORT, FinishReason.LENGTH)
    assert len(timed.ids) == len(timed.logprobs) > 0
    assert real.statistics().running == real.statistics().queued == 0
