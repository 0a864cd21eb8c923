"""Answers with a turn: chat completions and their chunks, as OpenAI's clients read them. Pure.

Beside OpenAI's fields an answer has `fairbox`: the trajectory, the branch and turn that it was recorded as, why a
branch was started and where the messages differ, the weights that sampled it, and what is wrong with malformed calls.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from rollout.capture.recorder import RecordedTurn
from rollout.engines.base import FinishReason


@dataclass(frozen=True, slots=True)
class ReplyBody:
    """A recorded turn on its way to its client."""

    trajectory_id: str
    completion_id: str
    model: str
    created: int
    """Seconds since 1970."""
    turn: RecordedTurn
    context_ids: tuple[int, ...]
    """Ids that the engine got as context."""
    problems: tuple[str, ...]
    decode: Callable[[Sequence[int]], str]
    logprobs: bool
    token_ids: bool

    @property
    def ids(self) -> tuple[int, ...]:
        """The sampled ids."""
        return tuple(chain.from_iterable(segment.ids for segment in self.turn.sampled))

    @property
    def finish_reason(self) -> str:
        """OpenAI's word: a turn that was cut off is `length`, whatever it holds."""
        if self.turn.finish is not FinishReason.STOP:
            return "length"
        return "tool_calls" if self.turn.message.calls else "stop"

    def usage(self) -> dict[str, int]:
        """Tokens of the context and of the turn."""
        prompt, sampled = len(self.context_ids), len(self.ids)
        return {"prompt_tokens": prompt, "completion_tokens": sampled, "total_tokens": prompt + sampled}

    def fairbox(self) -> dict[str, Any]:
        """Facts that OpenAI's interface has no field for."""
        turn = self.turn
        return {
            "trajectory_id": self.trajectory_id,
            "branch": turn.branch,
            "turn": turn.index,
            "new_branch": turn.reason is not None,
            "reason": turn.reason,
            "where": turn.where,
            "weight_versions": [[segment.weight_version, len(segment.ids)] for segment in turn.sampled],
            "malformed_calls": list(self.problems),
        }


def completion(answer: ReplyBody) -> dict[str, Any]:
    """The body of an answer that is not streamed."""
    message = answer.turn.message
    said: dict[str, Any] = {"role": "assistant", "content": message.content or None, "refusal": None}
    if message.reasoning:
        said["reasoning_content"] = message.reasoning
    if message.calls:
        said["tool_calls"] = _calls(answer)
    choice: dict[str, Any] = {"index": 0, "message": said, "finish_reason": answer.finish_reason}
    choice["logprobs"] = _logprobs(answer)
    body = _head(answer, "chat.completion") | {"choices": [choice], "usage": answer.usage()}
    if answer.token_ids:
        choice["token_ids"] = list(answer.ids)
        body["prompt_token_ids"] = list(answer.context_ids)
    return body | {"fairbox": answer.fairbox()}


def chunks(answer: ReplyBody, *, include_usage: bool) -> Iterator[dict[str, Any]]:
    """The same, in the pieces of a stream: role, thoughts, content, each call, the end; then usage where it is asked
    for. The turn was sampled whole, so the pieces are not smaller than these."""
    message = answer.turn.message
    yield _chunk(answer, {"role": "assistant", "content": ""})
    if message.reasoning:
        yield _chunk(answer, {"reasoning_content": message.reasoning})
    if message.content:
        yield _chunk(answer, {"content": message.content})
    for index, call in enumerate(_calls(answer)):
        yield _chunk(answer, {"tool_calls": [{"index": index} | call]})
    last = _chunk(answer, {}, finish_reason=answer.finish_reason)
    last["choices"][0]["logprobs"] = _logprobs(answer)
    if answer.token_ids:
        last["choices"][0]["token_ids"] = list(answer.ids)
        last["prompt_token_ids"] = list(answer.context_ids)
    yield last | {"fairbox": answer.fairbox()}
    if include_usage:
        yield _head(answer, "chat.completion.chunk") | {"choices": [], "usage": answer.usage()}


def sse(body: Mapping[str, Any]) -> bytes:
    """One event of a stream."""
    return b"data: " + json.dumps(body, separators=(",", ":")).encode("ascii") + b"\n\n"


def branch_headers(turn: RecordedTurn) -> dict[str, str]:
    """The branch for clients that show no fields of other servers."""
    headers = {"x-fairbox-branch": str(turn.branch), "x-fairbox-turn": str(turn.index)}
    if turn.reason is not None:
        headers["x-fairbox-branch-reason"] = turn.reason
    return headers


def _head(answer: ReplyBody, kind: str) -> dict[str, Any]:
    return {"id": answer.completion_id, "object": kind, "created": answer.created, "model": answer.model}


def _chunk(answer: ReplyBody, delta: dict[str, Any], finish_reason: str | None = None) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
    return _head(answer, "chat.completion.chunk") | {"choices": [choice]}


def _calls(answer: ReplyBody) -> list[dict[str, Any]]:
    return [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for call in answer.turn.message.calls
    ]


def _logprobs(answer: ReplyBody) -> dict[str, Any] | None:
    if not answer.logprobs:
        return None
    logprobs = chain.from_iterable(segment.logprobs or () for segment in answer.turn.sampled)
    return {"content": [_logprob(answer, *each) for each in zip(answer.ids, logprobs, strict=True)], "refusal": None}


def _logprob(answer: ReplyBody, token: int, logprob: float) -> dict[str, Any]:
    text = answer.decode((token,))
    return {
        "token": text,
        "logprob": logprob,
        "bytes": None if "\ufffd" in text else list(text.encode()),
        "top_logprobs": [],
    }
