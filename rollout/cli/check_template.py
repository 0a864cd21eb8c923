"""`fairbox check-template MODEL`: whether a model's chat template gives exact tokens over several turns, and why not.

MODEL is a model folder, a .jinja file (with the tokenizer of `tokenizer`), or smollm2.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fairbox.config import load, setting
from fairbox.errors import EXIT_FAILURE, ConfigError
from rollout.engines.model_store import find_model
from rollout.tokens.chat import ChatTemplate, ChatTemplateError, Rewrites
from rollout.tokens.probe import Findings, Severity, probe
from rollout.tokens.report import explain
from rollout.tokens.settings import ChatSettings
from rollout.tools.formats import AUTO, check_format, find_format

__all__ = ["CheckTemplateConfig", "main"]


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
        argv=_named(argv),
    )
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


def _named(argv: Sequence[str]) -> list[str]:
    """Lets the model be given without its name, as the first word."""
    words = list(argv)
    if words and not words[0].startswith("-") and "=" not in words[0]:
        words[0] = f"model={words[0]}"
    return words


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
