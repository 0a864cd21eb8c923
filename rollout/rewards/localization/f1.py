"""Rewards for what was found: F1 of files, of files, modules and entities, and of lines."""

from __future__ import annotations

from collections.abc import Set
from typing import Literal, Unpack

from rollout.rewards.base import Reward, Sample
from rollout.rewards.localization.dialects import Dialect, Generation, ReadArguments, answer_of
from rollout.rewards.localization.scores import Overlap, line_iou, line_overlap, overlap
from rollout.rewards.localization.truth import changed_truth, target_files, target_lines
from rollout.rewards.registry import reward


@reward("file_localization_f1_reward")
def file_localization_f1_reward(
    sample: Sample,
    *,
    generation: Generation = "codescout",
    file_level_weight: float = 1.0,
    beta: float = 1.0,
    **how: Unpack[ReadArguments],
) -> Reward:
    """`file_level_weight` * F_beta of the files. Needs `target`, or else `file_changes`. The dialect is `code_block`.

    Parts: `file_reward` (generation main: `file_level_score`), the F itself; precision and recall; `answered`.
    """
    answer = answer_of(sample, "code_block", how, generation=generation)
    met = overlap(answer.files, target_files(sample))
    name = "file_level_score" if generation == "main" else "file_reward"
    parts = {name: met.f(beta), "answered": float(answer.found)} | _precision_recall("file", met)
    return Reward(file_level_weight * met.f(beta), parts)


@reward("multilevel_localization_f1_reward")
def multilevel_localization_f1_reward(
    sample: Sample,
    *,
    generation: Generation = "codescout",
    file_level_weight: float = 1.0,
    module_level_weight: float = 1.0,
    entity_level_weight: float = 1.0,
    beta: float = 1.0,
    **how: Unpack[ReadArguments],
) -> Reward:
    """Weighted sum of F_beta of files, modules and entities; 3 at most with the default weights, which are not
    normalised. Needs `file_changes`.

    The dialect is the generation's own, `finish` (codescout) or `code_block` (main). `beta` works here; the functions
    that this comes from accept it and ignore it. Parts: `file_reward`, `module_reward`, `entity_reward`, which are the
    F without weights; precision and recall of each; `answered`.
    """
    own: Dialect = "code_block" if generation == "main" else "finish"
    answer = answer_of(sample, own, how, generation=generation)
    truth = changed_truth(sample)
    parts = {"answered": float(answer.found)}
    value = 0.0
    levels: tuple[tuple[str, float, Set[str], Set[str]], ...] = (
        ("file", file_level_weight, answer.files, truth.files),
        ("module", module_level_weight, answer.modules, truth.modules),
        ("entity", entity_level_weight, answer.entities, truth.entities),
    )
    for level, weight, predicted, true in levels:
        met = overlap(predicted, true)
        value += weight * met.f(beta)
        parts |= {f"{level}_reward": met.f(beta)} | _precision_recall(level, met)
    return Reward(value, parts)


@reward("line_localization_reward")
def line_localization_reward(
    sample: Sample, *, measure: Literal["iou", "f"] = "iou", beta: float = 1.0, **how: Unpack[ReadArguments]
) -> Reward:
    """Overlap of the answer's lines with those that the patch touches: intersection over union, or F_beta. Needs
    `target` with lines, or else `patch`. The dialect is `final_answer`; the others name no lines.

    Parts: `line_iou`, precision and recall, `answered`.
    """
    answer = answer_of(sample, "final_answer", how)
    truth = target_lines(sample)
    iou, met = line_iou(answer.lines, truth), line_overlap(answer.lines, truth)
    parts = {"line_iou": iou, "answered": float(answer.found)} | _precision_recall("line", met)
    return Reward(iou if measure == "iou" else met.f(beta), parts)


def _precision_recall(level: str, met: Overlap) -> dict[str, float]:
    return {f"{level}_precision": met.precision, f"{level}_recall": met.recall}
