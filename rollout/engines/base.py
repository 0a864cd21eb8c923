"""The interface of every engine: token ids in; ids, logprobs, finish reason and weight versions out.

Invariants, which the engines' shared test suite checks:
- `len(ids) == len(logprobs)`; a stop token that ended the turn is the last of both;
- a logprob is log_softmax(logits / temperature) at the sampled id, in float32, before top-k and top-p cut anything
  (at temperature 0 the choice is the most probable id and the logprob is that of the unscaled distribution);
- the version spans cover the ids without gap or overlap, in order;
- bad input is refused with a typed error before any work; an engine's own failure is an EngineUnavailable.

An engine knows nothing of text, chat templates or tools.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from enum import StrEnum
from types import TracebackType
from typing import Protocol, Self

from fairbox.errors import FairboxError, FieldError, FieldErrors


class EngineUnavailable(FairboxError):
    """The engine can't do its job now: full, closed, timed out in its queue, or broken. Its cause is INFRA."""


class FinishReason(StrEnum):
    """Why an engine stopped."""

    STOP = "stop"
    """It sampled one of `stop_token_ids`, which is the last of the ids."""
    LENGTH = "length"
    """It sampled `max_new_tokens` ids."""
    ABORT = "abort"
    """`time_limit_s` ran out; the ids so far are returned."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Parameters for choosing ids. Raises FieldErrors naming every bad value."""

    temperature: float = 1.0
    """0 (greedy) to 10."""
    top_p: float = 1.0
    """Smallest set of ids whose probabilities reach it; above 0, at most 1 (off)."""
    top_k: int = 0
    """The k most probable ids; 0 is off."""
    max_new_tokens: int = 128
    """At least 1."""
    stop_token_ids: tuple[int, ...] = ()
    """Ids that end the turn."""
    seed: int | None = None
    """Seed of this request alone, 0 to 2**63 - 1; None takes one from the operating system."""

    def __post_init__(self) -> None:
        errors = []
        if not (math.isfinite(self.temperature) and 0 <= self.temperature <= 10):
            errors.append(FieldError("temperature", f"is {self.temperature}, must be from 0 to 10"))
        if not 0 < self.top_p <= 1:
            errors.append(FieldError("top_p", f"is {self.top_p}, must be above 0 and at most 1"))
        if self.top_k < 0:
            errors.append(FieldError("top_k", f"is {self.top_k}, must be 0 (off) or more"))
        if self.max_new_tokens < 1:
            errors.append(FieldError("max_new_tokens", f"is {self.max_new_tokens}, must be at least 1"))
        if self.seed is not None and not 0 <= self.seed < 2**63:
            errors.append(FieldError("seed", f"is {self.seed}, must be from 0 to 2**63 - 1"))
        if errors:
            raise FieldErrors(errors)


def derived_seed(seed: int | None, what: str, number: int) -> int | None:
    """The seed of one part of all that `seed` draws, such as turn 3 of a trajectory; None stays None.

    A digest, and no sum: the second turn of one trajectory would have the draws of the first turn of the next.
    """
    if seed is None:
        return None
    return int.from_bytes(hashlib.sha256(f"{what} {number} of {seed}".encode()).digest()[:8]) % 2**63


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One turn to sample."""

    request_id: str
    """Unique while it lives, of fixed length (a hex uuid): some engines abort by prefix."""
    trajectory_id: str
    """Requests of one trajectory share a prefix; engines with several replicas keep them on one."""
    input_ids: tuple[int, ...]
    """The whole context."""
    params: SamplingParams
    queue_timeout_s: float = 600.0
    """Longest wait before the first token is worked on; then EngineUnavailable."""
    time_limit_s: float | None = None
    """Longest time from leaving the queue; then FinishReason.ABORT with what there is."""


@dataclass(frozen=True, slots=True)
class VersionSpan:
    """The weights that sampled `ids[start:end]`."""

    version: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class GenerationResult:
    """One sampled turn."""

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    """Natural logarithms, float32 values."""
    finish: FinishReason
    versions: tuple[VersionSpan, ...]
    queue_s: float = 0.0
    """Time before work on it began."""
    run_s: float = 0.0
    """Time from then to the last id."""
    cached_tokens: int = 0
    """Ids of the context that were not computed again."""


@dataclass(frozen=True, slots=True)
class EngineStatistics:
    """Live figures and running totals of an engine."""

    queued: int = 0
    running: int = 0
    finished: int = 0
    aborted: int = 0
    """Cancelled by their callers, timed out or failed."""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    """Prompt tokens that were not computed again."""
    sampled_tokens: int = 0
    busy_s: float = 0.0
    """Time with at least one request running."""


class Engine(Protocol):
    """Samples turns. Entered as an async context manager; leaving it ends everything that runs."""

    @property
    def model_name(self) -> str:
        """Name of the model in dumps."""
        ...

    @property
    def vocab_size(self) -> int:
        """Ids run from 0 to below this."""
        ...

    @property
    def max_model_tokens(self) -> int:
        """Longest context, prompt and sampled ids together."""
        ...

    async def generate(self, request: GenerationRequest) -> GenerationResult:
        """Samples one turn. Cancelling the call ends the work on it.

        Raises FieldErrors for a bad request and EngineUnavailable when the engine fails.
        """
        ...

    def statistics(self) -> EngineStatistics:
        """Live figures."""
        ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def check_request(request: GenerationRequest, *, vocab_size: int, max_model_tokens: int) -> None:
    """Raises FieldErrors for a request that no engine with these bounds could serve.

    An id outside the vocabulary takes some engines down, so it must never reach one.
    """
    errors = []
    ids = request.input_ids
    if not ids:
        errors.append(FieldError("input_ids", "is empty, must hold at least one id"))
    for name, values in (("input_ids", ids), ("params.stop_token_ids", request.params.stop_token_ids)):
        bad = next((index for index, token in enumerate(values) if not 0 <= token < vocab_size), None)
        if bad is not None:
            errors.append(FieldError(f"{name}[{bad}]", f"is {values[bad]}, must be from 0 to {vocab_size - 1}"))
    if len(ids) + request.params.max_new_tokens > max_model_tokens:
        problem = f"has {len(ids)} ids, which with max_new_tokens {request.params.max_new_tokens} is more than "
        errors.append(FieldError("input_ids", problem + f"the model's {max_model_tokens}"))
    for name, limit in (("queue_timeout_s", request.queue_timeout_s), ("time_limit_s", request.time_limit_s)):
        if limit is not None and not (math.isfinite(limit) and limit > 0):
            errors.append(FieldError(name, f"is {limit}, must be a positive number of seconds"))
    if errors:
        raise FieldErrors(errors)
