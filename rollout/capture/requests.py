"""The body of a chat completion as a typed request. Pure.

What is understood is used; what would change the turn and can't be followed is refused by name; what can't change it is
ignored, and only that. `null` is the same as leaving a parameter out, as in OpenAI's interface.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationError

from fairbox.bounded_json import loads
from fairbox.errors import FieldErrors
from rollout.capture.errors import ApiError, bad_parameter
from rollout.capture.messages import ChatMessage, Wire, WireMessage, parse_messages, refusal, shorten
from rollout.engines.base import SamplingParams

IGNORED = (
    "metadata",
    "prompt_cache_key",
    "prompt_cache_options",
    "prompt_cache_retention",
    "safety_identifier",
    "service_tier",
    "store",
    "user",
)
"""Parameters that can't change a turn: book-keeping, billing and caches of OpenAI's own service."""

_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "n": (1,),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "repetition_penalty": (1,),
    "length_penalty": (1,),
    "min_p": (0,),
    "min_tokens": (0,),
    "logit_bias": ({},),
    "parallel_tool_calls": (True,),
    "modalities": (["text"],),
    "response_format": ({"type": "text"},),
    "functions": ([],),
    "chat_template_kwargs": ({},),
    "skip_special_tokens": (True,),
    "ignore_eos": (False,),
    "echo": (False,),
    "add_generation_prompt": (True,),
    "continue_final_message": (False,),
}
"""Parameters that are accepted with these values only, with which they change nothing."""


_DEPTH, _VALUES = 64, 200_000
"""Most levels of nesting, and most values, of a body."""
_STOP_TEXTS = 4
"""Most stop texts of a request, special tokens aside: OpenAI's bound."""


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A client's request for a turn."""

    messages: tuple[ChatMessage, ...]
    tools: tuple[Mapping[str, Any], ...]
    """OpenAI function schemas, as the client wrote them."""
    parse_calls: bool
    """Says whether calls in the turn become `tool_calls`: there are tools, and tool_choice is not none."""
    params: SamplingParams
    """`max_new_tokens` is the most that the client asked for; the recorder clamps it to the room that is left."""
    stream: bool = False
    include_usage: bool = False
    logprobs: bool = False
    token_ids: bool = False
    stop_texts: tuple[str, ...] = ()
    """Texts that end the turn, beside the ids in `params`."""
    size: int = 0
    """Bytes of the body."""


@dataclass(frozen=True, slots=True)
class RequestRules:
    """This server's bounds and defaults for requests."""

    models: Collection[str]
    """Names that `model` may have; empty for any."""
    sampling: SamplingParams
    """Parameters of requests that name none; `max_new_tokens` is also the most that a request gets."""
    ignore: Collection[str] = ()
    """Parameters that are left out of requests before these are read."""
    special_tokens: Mapping[str, int] | None = None
    """Text -> id; a `stop` that is one of them ends a turn at that id."""
    stop_token_ids: tuple[int, ...] = ()
    """Ids that end a turn."""


def _whole(value: Any) -> Any:
    """Integers that a client's JSON writes as 5.0."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


_Whole = Annotated[int, BeforeValidator(_whole)]


class _Named(Wire):
    name: str = Field(min_length=1)


class _Tool(Wire):
    type: Literal["function"]
    function: _Named


class _StreamOptions(Wire):
    include_usage: Any = None


class _Body(Wire):
    """A chat completion's parameters, those aside that change nothing, which are `model_extra`."""

    model: str = Field(min_length=1)
    messages: list[WireMessage]
    tools: list[_Tool] = Field(default_factory=list)
    tool_choice: Literal["auto", "none"] = "auto"
    temperature: float | None = None
    top_p: float | None = None
    top_k: _Whole | None = None
    seed: _Whole | None = None
    max_tokens: Annotated[_Whole, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[_Whole, Field(ge=1)] | None = None
    stop: Annotated[list[str], BeforeValidator(_listed)] = Field(default_factory=list)
    stream: bool = False
    stream_options: _StreamOptions | None = None
    logprobs: bool = False
    top_logprobs: Literal[0] = 0
    return_token_ids: bool = False


def parse_body(data: bytes) -> Any:
    """A body as JSON. Raises ApiError."""
    try:
        return loads(data, depth=_DEPTH, left=[_VALUES], finite=True)
    except (ValueError, RecursionError) as error:
        raise bad_parameter("body", f"is not JSON: {str(error)[:200]}", code="invalid_json") from None


def parse_request(data: bytes, rules: RequestRules) -> ChatRequest:
    """Raises ApiError naming the parameter, its value and what is allowed."""
    body = parse_body(data)
    if not isinstance(body, dict):
        raise bad_parameter("body", f"is {shorten(body)}, must be a JSON object")
    said = {name: value for name, value in body.items() if value is not None and name not in rules.ignore}
    try:
        asked = _Body.model_validate(said)
    except ValidationError as error:
        raise refusal(error) from None
    _check_model(asked.model, rules)
    _check_others(asked.model_extra or {})
    if asked.stream_options is not None and not asked.stream:
        raise bad_parameter("stream_options", "is given, but stream is not true")
    tools = tuple(said.get("tools", ()))
    try:
        json.dumps(tools, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise bad_parameter("tools", "hold half of a surrogate pair, which no tokenizer takes") from None
    return ChatRequest(
        messages=parse_messages(asked.messages),
        tools=tools,
        parse_calls=bool(asked.tools) and asked.tool_choice != "none",
        params=_params(asked, rules),
        stream=asked.stream,
        include_usage=asked.stream_options is not None and asked.stream_options.include_usage is True,
        logprobs=asked.logprobs,
        token_ids=asked.return_token_ids,
        stop_texts=_stop_texts(asked.stop, rules),
        size=len(data),
    )


def _check_model(model: str, rules: RequestRules) -> None:
    if rules.models and model not in rules.models:
        problem = f"model is {shorten(model)}, must be one of: {', '.join(sorted(rules.models))}"
        raise ApiError(404, problem, code="model_not_found", param="model")


def _check_others(others: Mapping[str, Any]) -> None:
    """Raises ApiError for the first of the other parameters that may not be ignored."""
    for name, value in others.items():
        if name in IGNORED:
            continue
        allowed = _NEUTRAL.get(name)
        if allowed is None:
            problem = "is not supported; the setting ignore_parameters lets it pass without effect"
            raise bad_parameter(name, problem, code="unsupported_parameter")
        if value not in allowed:
            problem = f"is {shorten(value)}, only {shorten(allowed[0])} is supported"
            raise bad_parameter(name, problem, code="unsupported_parameter")


def _params(asked: _Body, rules: RequestRules) -> SamplingParams:
    given = asked.model_dump(include={"temperature", "top_p", "top_k", "seed"}, exclude_none=True)
    if asked.top_k == -1:  # how vLLM and sglang write "off"
        given["top_k"] = 0
    limits = (asked.max_tokens, asked.max_completion_tokens, rules.sampling.max_new_tokens)
    try:
        return replace(
            rules.sampling,
            max_new_tokens=min(limit for limit in limits if limit is not None),
            stop_token_ids=(*rules.stop_token_ids, *_stops(asked.stop, rules)),
            **given,
        )
    except FieldErrors as errors:
        raise bad_parameter(errors.errors[0].field, errors.errors[0].problem) from None


def _stops(texts: Sequence[str], rules: RequestRules) -> tuple[int, ...]:
    """Ids of the stop sequences that are special tokens."""
    known = rules.special_tokens or {}
    return tuple(known[text] for text in texts if text in known and known[text] not in rules.stop_token_ids)


def _stop_texts(texts: Sequence[str], rules: RequestRules) -> tuple[str, ...]:
    """The others. Raises ApiError."""
    found = tuple(dict.fromkeys(text for text in texts if text not in (rules.special_tokens or {})))
    if "" in found or len(found) > _STOP_TEXTS:
        problem = f"is {shorten(list(texts))}, must be a text or up to {_STOP_TEXTS}, and none of them empty"
        raise bad_parameter("stop", problem)
    return found
