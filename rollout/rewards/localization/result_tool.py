"""Rewards of the verifiers environments: `<files>` with its two measures of calls, and the older `result` tool.

Of the first the weights are 1, 1, 1; of the second 2 (check) and 1, 1, 1.
"""

from __future__ import annotations

from rollout.rewards.base import Reward, Sample
from rollout.rewards.localization.answer import strip_dot_slash
from rollout.rewards.localization.conduct import calls_by_turn
from rollout.rewards.localization.dialects import Dialect, answer_of
from rollout.rewards.localization.scores import Overlap, overlap
from rollout.rewards.localization.truth import target_files
from rollout.rewards.registry import reward
from rollout.tools.base import ToolOutcome

_TOOL = "result"


@reward("file_localization_reward")
def file_localization_reward(sample: Sample, *, dialect: Dialect = "files") -> Reward:
    """F1 of the files, `./` stripped on both sides; 0 without an answer, 1 where an answer and the truth are both
    empty. Needs `target`, `file_changes` or a ground truth that is a JSON object or list of paths.

    Parts: precision, recall, `answered`.
    """
    answer = answer_of(sample, dialect, {"normalise": True})
    truth = frozenset(map(strip_dot_slash, target_files(sample)))
    met = overlap(answer.files, truth)
    value = float(answer.found) if not answer.files and not truth else met.f()
    parts = {"file_precision": met.precision, "file_recall": met.recall, "answered": float(answer.found)}
    return Reward(value, parts)


@reward("turns_with_tool_calls")
def turns_with_tool_calls(sample: Sample, *, ran_only: bool = False) -> float:
    """1 if any turn called a tool, else 0. The name is that of the function that this comes from."""
    return float(bool(calls_by_turn(sample, ran_only=ran_only)))


@reward("tool_call_count_per_turn")
def tool_call_count_per_turn(sample: Sample, *, ran_only: bool = False) -> float:
    """min(5, calls a turn, over the turns that have any) / 5."""
    counts = calls_by_turn(sample, ran_only=ran_only)
    return min(5.0, counts.total() / len(counts)) / 5.0 if counts else 0.0


@reward("result_tool_check")
def result_tool_check(sample: Sample) -> float:
    """1 if the first call of `result` succeeded, else 0."""
    return float(_submitted(sample) is not None)


@reward("result_tool_precision")
def result_tool_precision(sample: Sample) -> float:
    """Precision of the files of `result(file_paths)`; 0 without a successful call or without files."""
    return _met(sample).precision


@reward("result_tool_recall")
def result_tool_recall(sample: Sample) -> float:
    """Recall of the files of `result(file_paths)`; 0 likewise."""
    return _met(sample).recall


@reward("result_tool_f1")
def result_tool_f1(sample: Sample) -> float:
    """F1 of the files of `result(file_paths)`; 0 likewise."""
    return _met(sample).f()


def _met(sample: Sample) -> Overlap:
    return overlap(_submitted(sample) or frozenset(), target_files(sample))


def _submitted(sample: Sample) -> frozenset[str] | None:
    """The files of the first call of `result`; None if there is none, or it failed."""
    call = next((call for call in sample.tool_calls if call.name == _TOOL), None)
    if call is None or call.outcome is not ToolOutcome.OK:
        return None
    paths = (call.arguments or {}).get("file_paths")
    listed = isinstance(paths, list) and all(isinstance(path, str) for path in paths)
    return frozenset(paths) if listed and paths else frozenset()
