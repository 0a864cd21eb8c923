"""A trajectory as a notebook shows it: what models and programs said is hostile, so all of it is escaped text."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rollout.loop.results import TrajectoryResult

_FOLDED = 2_000
"""Characters of a message from which on it is folded."""
_MOST = 50_000
"""Characters of a message that are shown."""


def trajectory_html(result: TrajectoryResult) -> str:
    """Its end and its conversation, as a fragment of HTML."""
    reward = "none" if result.reward is None else f"{result.reward.value:.4g}"
    facts = [f"reward {reward}", str(result.stop_reason), f"{result.turns} turns", f"cause {result.cause}"]
    if result.masked:
        facts.append("masked")
    parts = [f"<p><b>{escape(', '.join(facts))}</b> {escape(result.error or '')}</p>"]
    parts += [_message(message["role"], message["content"]) for message in result.messages]
    return f"<div>{''.join(parts)}</div>"


def _message(role: str, text: str) -> str:
    shown = f"<pre>{escape(text[:_MOST])}</pre>"
    title = f"{escape(role)}, {len(text):,} characters" if len(text) > _FOLDED else escape(role)
    if len(text) > _FOLDED:
        return f"<details><summary><small>{title}</small></summary>{shown}</details>"
    return f"<div><small>{title}</small>{shown}</div>"
