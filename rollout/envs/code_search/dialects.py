"""In which form a model answers where the code is. Reward functions read it; prompts say it."""

from __future__ import annotations

from enum import StrEnum

__all__ = ["AnswerDialect"]


class AnswerDialect(StrEnum):
    """The form of an answer."""

    FILES = "files"
    """`<files>` with a path a line. Files alone."""
    CODE_BLOCK = "code_block"
    """A code block of paths, each with its classes and functions. Files, modules, entities."""
    FINISH = "finish"
    """A call of the tool `localization_finish`. Files, modules, entities."""
    FINAL_ANSWER = "final_answer"
    """`<final_answer>` with `path:first-last` a line. Files and lines."""

    @property
    def is_call(self) -> bool:
        """Whether the answer is a call of a tool, and not text."""
        return self is AnswerDialect.FINISH
