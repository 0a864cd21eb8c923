"""Figures of one trajectory: how many tokens, turns and calls, and how it searched. Pure.

The names of the first two groups are those of the code search projects. Two things differ: calls are counted (there,
`avg_tool_calls_per_step` is always 0), and nothing is counted of a trajectory that did nothing.

| figure | meaning |
| --- | --- |
| `files_read` | files that commands which show files were given: `cat`, `head`, `tail`, `sed`, `nl`, ... |
| `duplicate_command_rate` | of its calls, those that were made before with the same arguments |
| `hit` | 1 where a file that is right was seen, in a command or an answer; only with the row's truth |
| `first_hit_turn` | the first turn in which one was; only where there is one |

Commands are read as words, not run: a file that a glob or a pipe names is not counted.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from rollout.loop.results import ToolCallRecord, TrajectoryResult
from rollout.rewards.base import NotScored, Sample
from rollout.rewards.localization.truth import target_files
from rollout.tokens.turn_spans import turn_spans

__all__ = [
    "ROOT",
    "PromptCount",
    "calls_of_turns",
    "efficiency_metrics",
    "files_read",
    "first_hit",
    "search_metrics",
    "trajectory_metrics",
]

ROOT = "/testbed"
"""Where workspaces are mounted."""
_SHOWS = frozenset(("awk", "bat", "cat", "head", "less", "more", "nl", "sed", "tac", "tail", "view"))
_SEPARATOR = re.compile(r"[|;&\n()]+")
_WORD = re.compile(r"""(?:[^\s'"]|'[^']*'|"[^"]*")+""")
_PATH = re.compile(r"(?=.*[^.])[\w./@+-]*[./][\w@+-]+")
"""A word with a dot or a slash in it that is more than dots: `src/a.py`, `a.py`, `src/Makefile`; no globs."""
_MOST_PLACES = 100
"""Occurrences of a path in one text that are looked at."""


def search_metrics(calls: Sequence[ToolCallRecord], row: Mapping[str, Any]) -> dict[str, float]:
    """The figures of the table above."""
    figures = {"files_read": float(len(files_read(calls))), "duplicate_command_rate": _duplicates(calls)}
    try:
        truth = target_files(Sample(text="", ground_truth="", row=row))
    except NotScored:
        return figures
    turn = first_hit(calls, truth)
    figures["hit"] = float(turn is not None)
    return figures if turn is None else figures | {"first_hit_turn": float(turn)}


def files_read(calls: Iterable[ToolCallRecord]) -> frozenset[str]:
    """Paths, relative to the workspace, of files that were shown."""
    found: set[str] = set()
    for call in calls:
        command = (call.arguments or {}).get("command")
        if isinstance(command, str) and call.outcome.ran:
            for part in _SEPARATOR.split(command):
                words = [word.strip("'\"") for word in _WORD.findall(part)]
                if words and words[0] in _SHOWS:
                    found.update(_relative(word) for word in words[1:] if _PATH.fullmatch(word))
    return frozenset(found)


def first_hit(calls: Iterable[ToolCallRecord], files: Iterable[str]) -> int | None:
    """The first turn in which a call or its answer names one of the files; None: none does."""
    files = tuple(files)
    for call in sorted(calls, key=lambda call: call.turn):
        if any(_names(text, file) for file in files for text in (call.text, call.raw)):
            return call.turn
    return None


def _duplicates(calls: Sequence[ToolCallRecord]) -> float:
    seen = {(call.name, json.dumps(call.arguments, sort_keys=True, default=str)) for call in calls}
    return 1 - len(seen) / len(calls) if calls else 0.0


def _relative(path: str) -> str:
    return path.removeprefix(ROOT + "/").removeprefix("./")


def _names(text: str, path: str) -> bool:
    """Whether a text has the path as a whole: not as the end of a longer one, nor as the beginning of a longer name."""
    position = text.find(path) if path else -1
    for _ in range(_MOST_PLACES):
        if position < 0:
            return False
        end = position + len(path)
        before, after = text[max(0, position - len(ROOT) - 1) : position], text[end : end + 1]
        begins = not before or before.endswith(ROOT + "/") or _ends_a_word(before.removesuffix("./"))
        if begins and not (after.isalnum() or after == "_"):
            return True
        position = text.find(path, position + 1)
    return False


def _ends_a_word(before: str) -> bool:
    return not before or not (before[-1].isalnum() or before[-1] in "_./-")


PromptCount = Literal["last", "sum"]
"""What the tokens of the prompt are: those that the last turn was given (codescout), which are all that there are, or
those of all turns together (main), in which the first prompt counts once for each turn. Of a trajectory in several
parts the context of each part's last turn counts."""


def trajectory_metrics(
    result: TrajectoryResult, row: Mapping[str, Any] | None = None, *, prompt_count: PromptCount = "last"
) -> dict[str, float]:
    """Every figure by its name. `row` is the task's; some figures of the search need its truth."""
    calls = sum(calls_of_turns(result))
    return {
        **efficiency_metrics(result, prompt_count=prompt_count),
        "num_turns": float(result.turns),
        "num_tool_calls": float(calls),
        "num_tool_calls_per_turn": _per(calls, result.turns),
        **search_metrics(result.tool_calls, row or {}),
    }


def efficiency_metrics(result: TrajectoryResult, *, prompt_count: PromptCount = "last") -> dict[str, float]:
    """Tokens and calls a step, which is a turn of the assistant; seconds on the wall, waits included."""
    parts = [turn_spans(part) for part in result.parts]
    response = sum(span.end - span.start for spans in parts for span in spans)
    prompts = [[span.start for span in spans] for spans in parts]
    prompt = sum(sum(starts) if prompt_count == "sum" else max(starts, default=0) for starts in prompts)
    return {
        "tokens": float(prompt + response),
        "steps": float(result.turns),
        "avg_tool_calls_per_step": _per(sum(calls_of_turns(result)), result.turns),
        "wall_clock_duration": result.times.total_s,
        "total_prompt_tokens": float(prompt),
        "total_response_tokens": float(response),
        "avg_prompt_tokens_per_step": _per(prompt, result.turns),
        "avg_response_tokens_per_step": _per(response, result.turns),
    }


def calls_of_turns(result: TrajectoryResult) -> list[int]:
    """Calls of each turn that has any, in order: those that were answered, also with what is wrong with them."""
    return [count for _, count in sorted(Counter(call.turn for call in result.tool_calls).items())]


def _per(count: int, turns: int) -> float:
    return count / turns if turns else 0.0
