"""Samples turns for requests: the recorder's plan, the engine's ids, the record. Knows no HTTP.

Invariants: the engine gets exactly the ids that are recorded as the turn's context; a turn that was not sampled whole,
because its request was cancelled or the engine failed, leaves nothing behind but the failure's note; whatever happens,
what was reserved is given back.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from dataclasses import dataclass, replace

from fairbox.clock import Clock
from fairbox.errors import FieldErrors
from rollout.capture.errors import ApiError, bad_parameter, deadline_passed, engine_failed, too_long
from rollout.capture.record import Entry
from rollout.capture.recorder import NoRoomError, PromptError
from rollout.capture.replies import Answer
from rollout.capture.requests import ChatRequest
from rollout.capture.tree import Pending
from rollout.capture.turns import parse_turn
from rollout.engines.base import Engine, EngineUnavailable, GenerationRequest, GenerationResult, SamplingParams
from rollout.tokens import ChatTemplate
from rollout.tools import ToolCallFormat

__all__ = ["TurnSampler"]


@dataclass(frozen=True, slots=True)
class TurnSampler:
    """`queue_timeout_s` is the longest wait in the engine's queue, `request_timeout_s` that for everything."""

    engine: Engine
    chat: ChatTemplate
    form: ToolCallFormat
    clock: Clock
    queue_timeout_s: float
    request_timeout_s: float

    async def sample(self, entry: Entry, asked: ChatRequest) -> Answer:
        """A recorded turn. Raises ApiError. Cancelling it ends the generation."""
        failures = entry.failures
        try:
            pending = entry.recorder.begin(asked.messages, asked.tools, max_new_tokens=asked.params.max_new_tokens)
        except NoRoomError as error:
            raise too_long(str(error)) from None
        except PromptError as error:
            raise bad_parameter("messages", f"can't be used: {error}") from None
        params = replace(asked.params, max_new_tokens=pending.max_new_tokens)
        try:
            result = await self._generate(entry, pending, params)
        except BaseException:
            entry.recorder.abandon(pending)
            raise
        if failures == entry.failures:  # what failed before this request began was overcome by asking again
            entry.error = None
        return self._recorded(entry, pending, asked, params, result)

    async def _generate(self, entry: Entry, pending: Pending, params: SamplingParams) -> GenerationResult:
        request = GenerationRequest(
            request_id=uuid.uuid4().hex,
            trajectory_id=entry.trajectory_id,
            input_ids=pending.ids,
            params=params,
            queue_timeout_s=self.queue_timeout_s,
        )
        try:
            async with asyncio.timeout(self.request_timeout_s):
                return await self.engine.generate(request)
        except FieldErrors as errors:
            raise bad_parameter(errors.errors[0].field.removeprefix("params."), errors.errors[0].problem) from None
        except EngineUnavailable as error:
            raise self._failed(entry, engine_failed(f"the engine is unavailable: {error}")) from None
        except TimeoutError:
            problem = f"no turn within {self.request_timeout_s:g} s, which is request_timeout_s"
            raise self._failed(entry, deadline_passed(problem)) from None

    def _recorded(
        self, entry: Entry, pending: Pending, asked: ChatRequest, params: SamplingParams, result: GenerationResult
    ) -> Answer:
        text = self.chat.turn_text(result.ids)
        stopped_at = result.ids[-1:]
        shown = text
        if stopped_at and stopped_at[0] != self.chat.end_of_turn and stopped_at[0] in params.stop_token_ids:
            shown = self.chat.turn_text(result.ids[:-1])
        parsed = parse_turn(shown, self.form, asked.tools if asked.parse_calls else ())
        turn = entry.recorder.commit(pending, result, parsed.message, text, params)
        return Answer(
            trajectory_id=entry.trajectory_id,
            completion_id=f"chatcmpl-{uuid.uuid4().hex}",
            model=self.engine.model_name,
            created=int(time.time()),
            turn=turn,
            context_ids=pending.ids,
            problems=parsed.problems,
            decode=self.chat.decode,
            logprobs=asked.logprobs,
            token_ids=asked.token_ids,
        )

    @staticmethod
    def _failed(entry: Entry, error: ApiError) -> ApiError:
        entry.failed(error.message)
        return error
