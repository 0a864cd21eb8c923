"""When a trajectory has had enough. Pure.

Limits are checked in this order, and the first one reached names the stop reason:

1. `max_response_tokens`: ids after the prompt, sampled and tool ids together;
2. `max_model_tokens`: prompt and response together, also bounded by the engine's own maximum;
3. `max_turns`: turns of the assistant;
4. `max_tool_calls`: calls that were run or answered as malformed, calls of finish tools among them;
5. `max_tool_time_s`: time of the calls' own programs. Neither the engine's time nor waits in the queues of engine,
   limiter and executor are charged, because the model does not cause how long a token takes; they have deadlines of
   their own, and missing one is INFRA.

They are checked before each turn, whose budget is clamped to what is left, and after it, before its tool calls are run:
a call whose answer could not be used is not run. A call of a finish tool asks for no answer, so it is run all the same,
before the limits are looked at: if it ends the trajectory, the reason is `answered`, and if it does not, because its
arguments are wrong, the limit's.

`max_turn_tokens` bounds one turn and is no reason to stop by itself: a trajectory whose turn it cuts off goes on if
that turn holds a tool call.

Deadlines form layers: a tool call has its tool's (`default_timeout`), a turn `AgentLoop.turn_timeout_s`, a trajectory
`max_tool_time_s`, and the run `time_limit_s` (see `Schedule`), which drops what has not ended.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from fairbox.settings import check, setting


class StopReason(StrEnum):
    """Why a trajectory ended."""

    ANSWERED = "answered"
    """The model ended its turn without a tool call, or handed its answer over by a finish tool."""
    TURN_LENGTH = "turn_length"
    """A turn without a tool call was cut off by `max_turn_tokens`."""
    RESPONSE_LENGTH = "response_length"
    """`max_response_tokens` is reached, or the tools' answers would exceed it."""
    MODEL_LENGTH = "model_length"
    """`max_model_tokens` is reached, or the tools' answers would exceed it."""
    TURNS = "turns"
    """The last of `max_turns` turns asked for a tool."""
    TOOL_CALLS = "tool_calls"
    """A turn asked for a tool after the last of `max_tool_calls`."""
    TOOL_TIME = "tool_time"
    """`max_tool_time_s` is reached."""
    BAD_PROMPT = "bad_prompt"
    """The chat template does not take the task's messages: a fault of the data, whose cause is TASK."""
    INFRA = "infra"
    """The service failed, and retries did not help; the cause is INFRA. Masked."""


@dataclass(frozen=True)
class Limits:
    """Each is a positive number or None, which is no limit. Raises ConfigError."""

    max_response_tokens: int | None = setting(
        1024, above=0, help="Tokens after the prompt, sampled and tool ones together."
    )
    max_model_tokens: int | None = setting(
        None, above=0, help="Prompt and response together; the model's own maximum also holds."
    )
    max_turns: int | None = setting(4, above=0, help="Turns of the assistant.")
    max_tool_calls: int | None = setting(8, above=0, help="Tool calls, malformed ones included.")
    max_tool_time_s: float | None = setting(
        300.0, above=0, help="Seconds of the programs of tool calls, without waits in queues."
    )
    max_turn_tokens: int | None = setting(256, above=0, help="Tokens of one turn.")

    def __post_init__(self) -> None:
        check(self, "limits")

    def reached(self, usage: Usage) -> StopReason | None:
        """The first limit, in the order above, that leaves nothing for another turn."""
        order = (
            (StopReason.RESPONSE_LENGTH, usage.response_tokens, self.max_response_tokens),
            (StopReason.MODEL_LENGTH, usage.context_tokens, self.max_model_tokens),
            (StopReason.TURNS, usage.turns, self.max_turns),
            (StopReason.TOOL_CALLS, usage.tool_calls, self.max_tool_calls),
            (StopReason.TOOL_TIME, usage.charged_s, self.max_tool_time_s),
        )
        return next((reason for reason, used, limit in order if limit is not None and used >= limit), None)

    def turn_budget(self, usage: Usage) -> int | None:
        """Most ids that the next turn may sample; None when nothing bounds it."""
        lefts = [self.max_turn_tokens]
        if self.max_response_tokens is not None:
            lefts.append(self.max_response_tokens - usage.response_tokens)
        if self.max_model_tokens is not None:
            lefts.append(self.max_model_tokens - usage.context_tokens)
        return min((left for left in lefts if left is not None), default=None)

    def time_left_s(self, usage: Usage) -> float | None:
        """Time that tools may still take; None when nothing bounds it."""
        return None if self.max_tool_time_s is None else max(0.001, self.max_tool_time_s - usage.charged_s)


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens, turns, calls and time that a trajectory has used."""

    prompt_tokens: int
    """Prompt tokens of the present part."""
    response_tokens: int = 0
    """Response tokens of all parts."""
    earlier_tokens: int = 0
    """Response tokens of closed parts; `response_tokens` includes them."""
    turns: int = 0
    tool_calls: int = 0
    charged_s: float = 0.0
    """Time of tool calls, without waits."""

    @property
    def context_tokens(self) -> int:
        """Tokens of the model's present context."""
        return self.prompt_tokens + self.response_tokens - self.earlier_tokens
