"""A model of 1.8 million weights that learns to use a tool in minutes, and problems for it:
`python -m examples.practice out=FOLDER`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from examples.practice import WarmUp, write_practice
from fairbox.config import load, setting
from fairbox.errors import FairboxError
from fairbox.extras import require


@dataclass(frozen=True)
class PracticeDataConfig:
    """Settings of the practice folder."""

    out: str = setting(help="Folder to write, which must not be there: model/, train.jsonl, test.jsonl.")
    seed: int = setting(0, least=-(2**63), most=2**64 - 1, help="Draws the first weights and the problems.")
    threads: int = setting(
        1, least=1, help="Threads of torch; more than there are idle cores make it many times slower."
    )
    warm_up: WarmUp = setting(factory=WarmUp, help="The supervised warm-up.")


def main(argv: Sequence[str]) -> int:
    """Entry point; 0 when everything was written."""
    try:
        _write(load(PracticeDataConfig, prefix="PRACTICE", prog="practice", description=__doc__ or "", argv=argv))
    except FairboxError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


def _write(config: PracticeDataConfig) -> None:
    require("a practice model", "engine", "torch", "transformers")
    import torch

    torch.set_num_threads(config.threads)
    loss = write_practice(Path(config.out).expanduser(), config.warm_up, seed=config.seed)
    print(f"model, train.jsonl and test.jsonl in {config.out}; last loss of the warm-up {loss:.3f}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
