"""The body of a chat completion as a typed request. Pure.

What is understood is used; what would change the turn and can't be followed is refused by name; what can't change it is
ignored, and only that. `null` is the same as leaving a parameter out, as in OpenAI's interface.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from fairbox.errors import FieldErrors
from rollout.capture.errors import bad_parameter
from rollout.capture.messages import ChatMessage, parse_messages, shorten
from rollout.engines.base import SamplingParams

__all__ = ["IGNORED", "ChatRequest", "RequestRules", "parse_request"]

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
_TOOL_CHOICES = ("auto", "none")


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """What a client asks for."""

    messages: tuple[ChatMessage, ...]
    tools: tuple[Mapping[str, Any], ...]
    """OpenAI function schemas, as the client wrote them."""
    parse_calls: bool
    """Whether calls in the turn become `tool_calls`: there are tools, and tool_choice is not none."""
    params: SamplingParams
    """`max_new_tokens` is the most that the client asked for; the recorder clamps it to the room that is left."""
    stream: bool = False
    include_usage: bool = False
    logprobs: bool = False
    token_ids: bool = False


@dataclass(frozen=True, slots=True)
class RequestRules:
    """What this server allows and what it assumes."""

    models: Collection[str]
    """Names that `model` may have; empty for any."""
    sampling: SamplingParams
    """Of requests that say nothing; `max_new_tokens` is also the most that a request gets."""
    force_sampling: bool = False
    """Temperature, top_p, top_k and seed are those of `sampling`, whatever requests say."""
    ignore: Collection[str] = ()
    """Further parameters that are ignored."""
    special_tokens: Mapping[str, int] | None = None
    """Text -> id; a `stop` must be one of them."""
    stop_token_ids: tuple[int, ...] = ()
    """What ends a turn."""


def parse_request(body: Any, rules: RequestRules) -> ChatRequest:
    """Raises ApiError naming the parameter, its value and what is allowed."""
    if not isinstance(body, Mapping):
        raise bad_parameter("body", f"is {shorten(body)}, must be a JSON object")
    reader = _Reader(body, rules.ignore)
    _check_model(reader.take("model"), rules)
    messages = parse_messages(reader.take("messages"))
    tools = _tools(reader.take("tools"))
    choice = reader.take("tool_choice")
    if choice is not None and choice not in _TOOL_CHOICES:
        raise bad_parameter("tool_choice", f"is {shorten(choice)}, must be auto or none: calls are not forced here")
    params = _params(reader, rules)
    stream = reader.flag("stream")
    options = reader.take("stream_options")
    if options is not None and (not isinstance(options, Mapping) or not stream):
        raise bad_parameter("stream_options", f"is {shorten(options)}, must be an object, and stream be true")
    logprobs = reader.flag("logprobs")
    if reader.take("top_logprobs") not in (None, 0):
        raise bad_parameter("top_logprobs", "must be 0: logprobs of sampled tokens are all there is")
    token_ids = reader.flag("return_token_ids")
    reader.finish()
    return ChatRequest(
        messages=messages,
        tools=tools,
        parse_calls=bool(tools) and choice != "none",
        params=params,
        stream=stream,
        include_usage=options is not None and options.get("include_usage") is True,
        logprobs=logprobs,
        token_ids=token_ids,
    )


class _Reader:
    """Takes parameters out of a body, and knows which nobody took."""

    def __init__(self, body: Mapping[str, Any], ignore: Collection[str]) -> None:
        self._left = {name: value for name, value in body.items() if value is not None}
        self._ignore = ignore

    def take(self, name: str) -> Any:
        return self._left.pop(name, None)

    def flag(self, name: str) -> bool:
        value = self.take(name)
        if value not in (None, True, False):
            raise bad_parameter(name, f"is {shorten(value)}, must be true or false")
        return bool(value)

    def number(self, name: str, kind: Callable[[Any], float]) -> Any:
        """A number, or None; `kind` is int or float."""
        value = self.take(name)
        if value is None:
            return None
        whole = kind is int
        number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
        if not number or (whole and value != int(value)):
            raise bad_parameter(name, f"is {shorten(value)}, must be {'an integer' if whole else 'a number'}")
        return kind(value)

    def finish(self) -> None:
        """Raises ApiError for the first parameter that is left and may not be ignored."""
        for name, value in self._left.items():
            if name in IGNORED or name in self._ignore:
                continue
            allowed = _NEUTRAL.get(name)
            if allowed is None:
                problem = "is not supported; the setting ignore_parameters lets it pass without effect"
                raise bad_parameter(name, problem, code="unsupported_parameter")
            if value not in allowed:
                problem = f"is {shorten(value)}, only {shorten(allowed[0])} is supported"
                raise bad_parameter(name, problem, code="unsupported_parameter")


def _check_model(model: Any, rules: RequestRules) -> None:
    if not isinstance(model, str) or not model:
        raise bad_parameter("model", f"is {shorten(model)}, must be a string")
    if rules.models and model not in rules.models:
        problem = f"is {shorten(model)}, must be one of: {', '.join(sorted(rules.models))}"
        error = bad_parameter("model", problem, code="model_not_found")
        error.status = 404
        raise error


def _params(reader: _Reader, rules: RequestRules) -> SamplingParams:
    given = {
        "temperature": reader.number("temperature", float),
        "top_p": reader.number("top_p", float),
        "top_k": reader.number("top_k", int),
        "seed": reader.number("seed", int),
    }
    if given["top_k"] == -1:  # how vLLM and sglang write "off"
        given["top_k"] = 0
    limits = [reader.number(name, int) for name in ("max_tokens", "max_completion_tokens")]
    asked = [limit for limit in limits if limit is not None]
    if any(limit < 1 for limit in asked):
        name = "max_tokens" if limits[0] is not None and limits[0] < 1 else "max_completion_tokens"
        raise bad_parameter(name, f"is {min(asked)}, must be at least 1")
    stops = _stops(reader.take("stop"), rules)
    changes = {} if rules.force_sampling else {name: value for name, value in given.items() if value is not None}
    try:
        return replace(
            rules.sampling,
            max_new_tokens=min([*asked, rules.sampling.max_new_tokens]),
            stop_token_ids=(*rules.stop_token_ids, *stops),
            **changes,
        )
    except FieldErrors as errors:
        raise bad_parameter(errors.errors[0].field, errors.errors[0].problem) from None


def _stops(value: Any, rules: RequestRules) -> tuple[int, ...]:
    """Ids of the stop sequences: an engine stops at tokens, and only a special one is a token in every context."""
    texts = [] if value is None else [value] if isinstance(value, str) else value
    if not isinstance(texts, list):
        raise bad_parameter("stop", f"is {shorten(value)}, must be a string or a list of strings")
    known = rules.special_tokens or {}
    for text in texts:
        if not isinstance(text, str) or text not in known:
            problem = f"is {shorten(text)}, must be a special token of the model: turns end at tokens, not at text"
            raise bad_parameter("stop", problem, code="unsupported_parameter")
    return tuple(known[text] for text in texts if known[text] not in rules.stop_token_ids)


def _tools(value: Any) -> tuple[Mapping[str, Any], ...]:
    if value is None:
        return ()
    if not isinstance(value, list):
        raise bad_parameter("tools", f"is {shorten(value)}, must be a list")
    for index, tool in enumerate(value):
        function = tool.get("function") if isinstance(tool, Mapping) else None
        if not isinstance(function, Mapping) or tool.get("type") != "function":
            raise bad_parameter(f"tools[{index}]", f"is {shorten(tool)}, must be an object of type function")
        name = function.get("name")
        if not isinstance(name, str) or not name:
            raise bad_parameter(f"tools[{index}].function.name", f"is {shorten(name)}, must be a string")
    return tuple(value)
