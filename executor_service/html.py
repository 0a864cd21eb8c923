"""A result as a notebook shows it.

What a program wrote is hostile: all of it is escaped text, but for pictures, which are images and run nothing.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from executor_service.model import Display, ExecutionResult, Output

_PICTURES = ("image/png", "image/jpeg", "image/gif", "image/svg+xml")
_MOST = 20_000
"""Characters of a stream that are shown."""


def result_html(result: ExecutionResult) -> str:
    """Outcome, streams and displayed values, as a fragment of HTML."""
    facts = [str(result.outcome), f"{result.wall_time_s:.3g} s"]
    if not result.ok:
        facts.insert(1, f"cause {result.cause}")
    if result.exit_code and not result.signal:
        facts.insert(1, f"exit code {result.exit_code}")
    parts = [f"<p><b>{escape(', '.join(facts))}</b> {escape(result.message)}</p>"]
    if result.compilation is not None:
        parts += _stream("compiler", result.compilation.stdout)
        parts += _stream("compiler's stderr", result.compilation.stderr)
    parts += [*_stream("stdout", result.stdout), *_stream("stderr", result.stderr)]
    parts += [_display(each) for each in result.displays]
    if result.files:
        names = ", ".join(f"{each.path} ({each.status}, {each.size_bytes:,} bytes)" for each in result.files)
        parts.append(f"<p>files: {escape(names)}</p>")
    return f"<div>{''.join(parts)}</div>"


def _stream(name: str, output: Output) -> Iterator[str]:
    if not output.total_bytes and not output.data:
        return
    text = output.text
    cut = " (cut)" if output.truncated or len(text) > _MOST else ""
    yield f"<div><small>{escape(name)}{cut}</small><pre>{escape(text[:_MOST])}</pre></div>"


def _display(display: Display) -> str:
    for kind in _PICTURES:
        if kind in display.data:
            content = base64.b64encode(display.data[kind]).decode("ascii")
            return f'<img alt="{escape(display.text[:200])}" src="data:{kind};base64,{content}">'
    return f"<pre>{escape(display.text[:_MOST])}</pre>"
