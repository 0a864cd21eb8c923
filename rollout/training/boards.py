"""Where the figures of a run go beside its file: TensorBoard, where it is installed, and Weights & Biases, where a
setting asks for it. Neither is imported otherwise."""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from fairbox.errors import FairboxError
from fairbox.extras import require

_WANDB_FINISH_S = 120
"""For sending what is left at the end of a run; what was not sent is in its folder, for `wandb sync`."""


class Board(Protocol):
    """One of them."""

    def write(self, step: int, figures: Mapping[str, float]) -> None:
        """One step, by names with a group (`train/reward`)."""

    def close(self, *, failed: bool) -> None:
        """Writes what is left."""


@dataclass(frozen=True, slots=True)
class WandbSettings:
    """A run of Weights & Biases. Where it goes, its key and whether it is sent say the variables of `wandb` itself."""

    project: str
    config: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the run, as plain values."""


def open_boards(folder: Path, *, after: int, wandb: WandbSettings | None) -> list[Board]:
    """For the steps behind `after` of the run in `folder`. Raises ConfigError where wandb is wanted and not installed,
    and FairboxError where it can't begin a run."""
    boards = [] if (tensorboard := _tensorboard(folder / "tensorboard", purge=after + 1)) is None else [tensorboard]
    return boards if wandb is None else [*boards, _wandb(folder, wandb, after)]


def _tensorboard(folder: Path, *, purge: int) -> Board | None:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # it looks for tensorflow, which is talkative
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    return _TensorBoard(SummaryWriter(str(folder), purge_step=purge))


class _TensorBoard:
    def __init__(self, writer: Any) -> None:
        self._writer = writer

    def write(self, step: int, figures: Mapping[str, float]) -> None:
        for name, value in figures.items():
            self._writer.add_scalar(name, value, step)

    def close(self, *, failed: bool) -> None:
        self._writer.close()


def _wandb(folder: Path, settings: WandbSettings, after: int) -> Board:
    require("wandb.project", "boards", "wandb")
    import wandb

    try:
        run = wandb.init(
            project=settings.project,
            name=folder.resolve().name,
            dir=str(folder),
            id=_run_id(folder / "wandb-id", new=after < 0),
            resume="allow",  # steps that are done again are the same, and it keeps the first it was told of
            config=dict(settings.config),
            settings=wandb.Settings(silent=True, console="off", finish_timeout=_WANDB_FINISH_S),
        )
    except (wandb.Error, OSError) as error:
        raise FairboxError(f"wandb is {settings.project!r}, and wandb can't begin a run: {error}") from None
    return _Wandb(run)


class _Wandb:
    def __init__(self, run: Any) -> None:
        self._run = run

    def write(self, step: int, figures: Mapping[str, float]) -> None:
        self._run.log(dict(figures), step=step)

    def close(self, *, failed: bool) -> None:
        self._run.finish(exit_code=int(failed))


def _run_id(path: Path, *, new: bool) -> str:
    """That of the run in this folder, so that one that goes on is one run there too."""
    if new or not path.exists():
        path.write_text(uuid.uuid4().hex[:16] + "\n", encoding="ascii")
    return path.read_text(encoding="ascii").strip()
