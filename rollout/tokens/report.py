"""What a check of a chat template found, in words. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["explain"]

_WHAT = {
    "prompt": "the prompt (system, user) is rendered otherwise when the conversation grows",
    "turn": "turn {turn} (role assistant) is rendered otherwise than it was sampled",
    "between": "what follows turn {turn} (roles tool and assistant) depends on the rest of the conversation",
}
_DO = {
    "turn": (
        "Training is exact with chat.rewrites=keep: sampled tokens stay as they are, earlier thinking included.",
        "A chat server would show the model its earlier turns otherwise; serve it the way it was trained.",
    ),
    "prompt": (
        "With chat.rewrites=keep the prompt stays as it was rendered first.",
        "Often the system message is what moves: a prompt without one may be append-only.",
    ),
    "between": (
        "With chat.rewrites=keep, what stands between turns is always what the template writes after a first turn.",
        "Better: correct the template, and give the corrected one with chat.template=FILE.",
    ),
    "tokens": ("There is no setting for it: the template's marks must be special tokens of the tokenizer.",),
}


def explain(model: str, report: Mapping[str, Any]) -> list[str]:
    """The lines of `fairbox check-template`. `report` is its JSON object."""
    safe = report["safe"]
    lines = [f"{model}: {'append-only, tokens are exact' if safe else 'NOT append-only'}"]
    given = "calls as data (tool_calls)" if report["turns_given_as"] == "tool_calls" else "text"
    lines += [
        f"  a turn ends with      {report['end_of_turn']}",
        f"  turns are given as    {given}",
        f"  tools                 {_tools(report)}",
        f"  tool calls            {report['tool_format'] or 'unknown: set tool_format, e.g. to sglang:NAME'}",
        f"  thinking is kept as   {report['thinking']}{_always(report)}",
    ]
    if report["drops_thinking_of_earlier_questions"]:
        lines.append("  note                  thinking is dropped when a new user message follows; tool turns are not")
    if report["tokens"] is not None:
        lines += ["", f"  the tokenizer joins pieces: {report['tokens']}"]
    for difference in report["differences"]:
        lines += [
            "",
            f"  {_WHAT[difference['kind']].format(turn=difference['turn'])}",
            f"    in a conversation of {difference['seen_with_turns']} answered turns",
            f"    was      {difference['expected']!r}",
            f"    became   {difference['found']!r}",
        ]
    if not safe:
        lines += ["", *(f"  {line}" for line in _DO[report["severity"]])]
    return lines


def _tools(report: Mapping[str, Any]) -> str:
    return "the template's own place" if report["place_for_tools"] else "none: described in the system message (Hermes)"


def _always(report: Mapping[str, Any]) -> str:
    return "; a turn without it is rewritten" if report["turns_need_thinking"] else ""
