"""Messages to and from sglang: request bodies, and answers as version 0.5.23 gave them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rollout.engines import EngineUnavailable, FinishReason, GenerationRequest, SamplingParams, VersionSpan
from rollout.engines.events import EventSplitter, event_of
from rollout.engines.sglang.wire import AnswerReader, generate_body, max_answer_bytes

FIRST = (
    '{"text":" Paris","output_ids":[7042],"meta_info":{"id":"aa6a45b1771447f9bb504041de2a5a84","finish_reason":null,'
    '"prompt_tokens":5,"weight_version":"default","num_retractions":0,"queue_time":0.013172074002795853,'
    '"input_token_logprobs":[],"output_token_logprobs":[[-0.04608883336186409,7042,null]],'
    '"output_token_logprobs_length":1,"completion_tokens":1,"cached_tokens":0}}'
)
LAST = (
    '{"text":" Paris.\\n","output_ids":[7042,30,198],"meta_info":{"id":"aa6a45b1771447f9bb504041de2a5a84",'
    '"finish_reason":{"type":"length","length":3},"prompt_tokens":5,"weight_version":"default",'
    '"queue_time":0.013172074002795853,"output_token_logprobs":[[-0.04608883336186409,7042,null],'
    '[-0.18103887140750885,30,null],[-0.4054144620895386,198,null]],"completion_tokens":3,"cached_tokens":4,'
    '"weight_versions":[{"version":"default","start":0,"end":2},{"version":"v2","start":2,"end":3}],"e2e_latency":1.5}}'
)
REFUSED = (
    '{"error":{"message":"Requested token count exceeds the model\'s maximum context length of 4096 tokens.",'
    '"type":"invalid_request_error","code":400,"retryable":false}}'
)
PARAMS = SamplingParams(max_new_tokens=3)


def reader(**options: Any) -> AnswerReader:
    return AnswerReader(PARAMS, vocab_size=49152, **options)


def changed(**meta: Any) -> bytes:
    """The last event with other facts."""
    event = json.loads(LAST)
    for key in ("output_ids",):
        if key in meta:
            event[key] = meta.pop(key)
    event["meta_info"] |= meta
    return json.dumps(event).encode()


def test_body_asks_for_ids_and_logprobs_of_the_scaled_distribution() -> None:
    params = SamplingParams(temperature=0.7, top_p=0.9, top_k=0, max_new_tokens=9, stop_token_ids=(2,), seed=5)
    body = generate_body(GenerationRequest("r", "t", (1, 2), params), "f" * 32)
    assert body == {
        "rid": "f" * 32,
        "input_ids": [1, 2],
        "return_logprob": True,
        "logprob_start_len": -1,
        "stream": True,
        "sampling_params": {
            "temperature": 0.7,
            "top_p": 0.9,
            "top_k": -1,
            "max_new_tokens": 9,
            "ignore_eos": False,
            "stop_token_ids": [2],
            "skip_special_tokens": False,
            "stream_interval": 10,
            "sampling_seed": 5,
        },
    }
    assert "sampling_seed" not in generate_body(GenerationRequest("r", "t", (1,), PARAMS), "f" * 32)["sampling_params"]


def test_recorded_stream_is_read() -> None:
    splitter = EventSplitter(max_answer_bytes(PARAMS))
    data = f"data: {FIRST}\n\ndata: {LAST}\n\ndata: [DONE]\n\n".encode()
    first, last, done = [payload for cut in (data[:77], data[77:600], data[600:]) for payload in splitter.feed(cut)]
    assert event_of(done) is None
    answers = reader()
    assert answers.add(event_of(first)) is None
    assert answers.started
    assert answers.queue_s == pytest.approx(0.0132, abs=1e-4)
    answer = answers.add(event_of(last))
    assert answer is not None
    assert answer.ids == (7042, 30, 198)
    assert answer.logprobs == (-0.04608883336186409, -0.18103887140750885, -0.4054144620895386)
    assert answer.versions == (VersionSpan("default", 0, 2), VersionSpan("v2", 2, 3))
    assert (answer.finish, answer.cached_tokens) == (FinishReason.LENGTH, 4)


def test_a_server_that_sends_only_what_is_new_is_read_too() -> None:
    answers = reader(incremental=True)
    answers.add(event_of(FIRST.encode()))
    logprobs = json.loads(LAST)["meta_info"]["output_token_logprobs"][1:]
    answer = answers.add(event_of(changed(output_ids=[30, 198], output_token_logprobs=logprobs)))
    assert answer is not None
    assert answer.ids == (7042, 30, 198)


def test_aborts_keep_what_there_is() -> None:
    reason = {"type": "abort", "message": "Aborted", "status_code": None, "err_type": None}
    answer = reader().add(event_of(changed(finish_reason=reason)))
    assert answer is not None
    assert answer.finish is FinishReason.ABORT
    assert len(answer.ids) == 3
    waiting = {"type": "abort", "message": "Abort in waiting queue"}
    event = {"text": "", "output_ids": [], "meta_info": {"finish_reason": waiting, "completion_tokens": 0}}
    answer = reader().add(event)
    assert answer is not None
    assert (answer.finish, answer.ids, answer.versions) == (FinishReason.ABORT, (), ())


@pytest.mark.parametrize(
    ("payload", "sentence"),
    [
        (REFUSED.encode(), "refused a turn: Requested token count exceeds"),
        (b"not json", "can't be read"),
        (b"[1]", "can't be read"),
        pytest.param(b"[" * 100_000, "can't be read", id="deep"),
        (b'{"output_ids": [1]}', "can't be read"),
        (changed(output_token_logprobs=[[-0.1, 7042, None]]), "can't be read"),
        (changed(output_token_logprobs=[[-0.1, 1, None]] * 3), "id 7042 with the logprob of id 1"),
        (changed(output_token_logprobs=[[None, 7042, None]] * 3), "id 7042 with logprob None"),
        (changed(output_ids=[99999] * 3, output_token_logprobs=[[-0.1, 99999, None]] * 3), "id 99999"),
        (changed(completion_tokens=4), "3 ids and counts 4"),
        (changed(output_ids=[7042] * 4, output_token_logprobs=[[-0.1, 7042, None]] * 4), "4 ids, 3 were wanted"),
        (b"[DONE]", "can't be read"),
        (changed(weight_versions=[{"version": "a", "start": 0, "end": 2}]), "don't cover 3 ids"),
        (changed(weight_versions=[{"version": "a", "start": 1, "end": 3}]), "don't cover 3 ids"),
        (changed(finish_reason={"type": "stop", "matched": "NaN happened"}), "NaN happened"),
        (changed(finish_reason={"type": "abort", "message": "out of memory", "status_code": 500}), "out of memory"),
    ],
)
def test_nonsense_is_the_engines_failure(payload: bytes, sentence: str) -> None:
    with pytest.raises(EngineUnavailable, match=sentence):
        reader().add(event_of(payload))


def test_turn_that_ends_short_without_reason_is_refused() -> None:
    answers = AnswerReader(SamplingParams(max_new_tokens=9), vocab_size=49152)
    with pytest.raises(EngineUnavailable, match="ended a turn of 9 ids after 3"):
        answers.add(event_of(LAST.encode()))


def test_answers_are_bounded() -> None:
    splitter = EventSplitter(100)
    with pytest.raises(EngineUnavailable, match="more than 100 bytes"):
        splitter.feed(b"data: " + b"x" * 200)
