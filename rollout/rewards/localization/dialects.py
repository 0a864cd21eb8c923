"""Which dialect an answer is read in. Pure.

| dialect | form | read from |
| --- | --- | --- |
| `files` | `<files>`, a path a line or a JSON list | the last turn |
| `code_block` | path, `class:`, `function:` | the final message |
| `finish` | the finish tool's `locations` | the records of the calls |
| `file_list` | `<file-list>['a', 'b']</file-list>` | the final message |
| `final_answer` | `<final_answer>path:first-last (note)</final_answer>` | the last turn |
| `answer` | `<answer>[(path, (first, last))]</answer>` | the final message |
"""

from __future__ import annotations

from typing import Literal

from rollout.rewards.base import Sample
from rollout.rewards.localization.answer import Answer
from rollout.rewards.localization.code_block import CodeBlockQuirks, parse_code_block
from rollout.rewards.localization.finish import finished_locations, parse_structured
from rollout.rewards.localization.lines import parse_final_answer, parse_line_answer
from rollout.rewards.localization.paths import parse_file_list, parse_files_tag
from rollout.rewards.localization.said import final_message, said

__all__ = ["Dialect", "Generation", "answer_of"]

Dialect = Literal["files", "code_block", "finish", "file_list", "final_answer", "answer"]
Generation = Literal["main", "codescout"]
"""Of the formulas and of the code block: `main` is agentic-code-search-oss, `codescout` what was released after it."""

_NORMALISES = ("files", "final_answer")
"""Dialects that drop a leading `./` unless told otherwise."""


def answer_of(
    sample: Sample,
    dialect: Dialect,
    *,
    generation: Generation = "codescout",
    normalise: bool | None = None,
    bare_files: bool = False,
    any_suffix: bool = False,
    check_last_step: bool = True,
) -> Answer:
    """What the sample answers.

    `normalise` drops a leading `./` of paths; None: as the dialect does by itself. `bare_files` and `any_suffix` are
    the code block's, `check_last_step` is the finish tool's. Of `generation` depends whether a code block keeps
    `__init__`.
    """
    drop = dialect in _NORMALISES if normalise is None else normalise
    match dialect:
        case "files":
            return parse_files_tag(said(sample), normalise=drop)
        case "final_answer":
            return parse_final_answer(said(sample), normalise=drop)
        case "file_list":
            return parse_file_list(final_message(sample), normalise=drop)
        case "answer":
            return parse_line_answer(final_message(sample), normalise=drop)
        case "code_block":
            quirks = CodeBlockQuirks(generation == "main", bare_files, drop, any_suffix)
            return parse_code_block(final_message(sample), quirks)
        case "finish":
            locations, problem = finished_locations(sample, check_last_step=check_last_step)
            if locations is None:
                return Answer(problems=(problem or "",))
            return parse_structured(locations, normalise=drop)
