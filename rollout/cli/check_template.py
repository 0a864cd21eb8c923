"""`fairbox check-template MODEL`: whether a model's chat template gives exact tokens over several turns, and why not.

MODEL is a model folder, a .jinja file (with the tokenizer of `tokenizer`), or smollm2.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fairbox.config import load, setting
from fairbox.errors import EXIT_FAILURE, ConfigError
from fairbox.extras import require
from rollout.cli.commands import with_first
from rollout.engines.model_store import find_model
from rollout.tokens.chat import ChatTemplate, ChatTemplateError, Rewrites
from rollout.tokens.probe import Findings, Severity, probe
from rollout.tokens.settings import ChatSettings
from rollout.tools.formats.choice import AUTO, check_format, find_format

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


@dataclass(frozen=True)
class CheckTemplateConfig:
    """Settings of `fairbox check-template`."""

    model: str = setting("smollm2", help="Folder of a model, a .jinja file, or smollm2; may be given without its name.")
    tokenizer: str = setting("smollm2", help="Folder whose tokenizer a .jinja file is tried with.")
    json: bool = setting(False, help="Print one JSON object.")
    tool_format: str = setting(AUTO, help="As in fairbox rollout.")
    chat: ChatSettings = setting(factory=ChatSettings, help="As in fairbox rollout.")

    def validate(self) -> None:
        """ConfigError for what types can't say."""
        self.chat.validate()
        check_format(self.tool_format)


def main(argv: Sequence[str]) -> int:
    """Entry point; 0 when trajectories are what the template would render, 1 when they are not."""
    config = load(
        CheckTemplateConfig,
        prefix="FAIRBOX_CHECK",
        prog="fairbox check-template",
        description=__doc__ or "",
        argv=with_first(argv, "model"),
    )
    require("fairbox check-template", "engine", "transformers")
    settings, folder = config.chat, config.model
    if folder.endswith(".jinja"):
        settings, folder = dataclasses.replace(settings, template=folder), config.tokenizer
        settings.validate()
    tokenizer = settings.tokenizer(find_model(folder))
    report: dict[str, Any] = {"model": config.model, "safe": False, "usable": False}
    try:
        findings = probe(tokenizer)
    except ChatTemplateError as error:
        report |= {"severity": "unusable", "problem": str(error)}
        lines = [f"{config.model}: can't be used", f"  {error}"]
    else:
        chat = ChatTemplate(tokenizer, rewrites=Rewrites.KEEP) if findings.tokens is None else None
        report |= _facts(findings) | {"tool_format": _format(config.tool_format, chat)}
        report["stop_tokens"] = [] if chat is None else [chat.conversation.end]
        report["drops_thinking_of_earlier_questions"] = None if chat is None else chat.drops_old_thinking()
        lines = explain(config.model, report)
    print(json.dumps(report, ensure_ascii=False, indent=2) if config.json else "\n".join(lines))
    return 0 if report["safe"] else EXIT_FAILURE


def _facts(findings: Findings) -> dict[str, Any]:
    severity = findings.severity
    return {
        "safe": severity is Severity.NONE,
        "usable": severity is not Severity.TOKENS and findings.tokens is None,
        "severity": severity.name.lower(),
        "end_of_turn": findings.conversation.end,
        "place_for_tools": findings.conversation.has_tools,
        "turns_given_as": "tool_calls" if findings.conversation.style.calls else "text",
        "thinking": findings.form.name,
        "turns_need_thinking": findings.form.always,
        "tokens": findings.tokens,
        "differences": [
            dataclasses.asdict(difference) | {"seen_with_turns": turns} for difference, turns in findings.differences
        ],
    }


def _format(name: str, chat: ChatTemplate | None) -> str | None:
    if chat is None:
        return None
    try:
        return find_format(name, chat).name
    except ConfigError:
        if name != AUTO:
            raise
        return None
