"""`fairbox check-dump`: whether a dump's logprobs are those of an independent forward pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fairbox.config import load, setting
from fairbox.errors import EXIT_FAILURE
from fairbox.extras import require
from rollout.engines.model_store import find_model


@dataclass(frozen=True)
class CheckDumpConfig:
    """Settings of `fairbox check-dump`."""

    dump: str = setting(help="The dump, a .jsonl file.")
    model: str = setting("smollm2", help="The model that sampled it: a folder, or smollm2.")
    tolerance: float = setting(1e-4, help="Largest difference of a logprob that is accepted.")


def main(argv: Sequence[str]) -> int:
    """Entry point; 0 when everything agrees, 1 otherwise."""
    config = load(
        CheckDumpConfig, prefix="FAIRBOX_CHECK", prog="fairbox check-dump", description=__doc__ or "", argv=argv
    )
    require("fairbox check-dump", "engine", "torch", "transformers")
    from rollout.dump_check import check_dump  # torch

    model_dir = find_model(config.model)
    found = check_dump(Path(config.dump), model_dir)
    for problem in found.problems:
        print(problem)
    print(
        f"{found.trajectories} trajectories, {found.sampled_tokens} sampled tokens: "
        f"largest difference of a logprob {found.max_logprob_difference:.2e}"
    )
    if found.max_logprob_difference > config.tolerance:
        print(f"it is at {found.worst}")
    agrees = not found.problems and found.max_logprob_difference <= config.tolerance
    return 0 if agrees else EXIT_FAILURE
