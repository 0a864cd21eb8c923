"""Writes the figures of a run to dashboards, beside its file: TensorBoard if it is installed, and Weights & Biases if a
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
"""Seconds for sending what is left at the end of a run; what was not sent stays in its folder, for `wandb sync`."""


class Board(Protocol):
    """A dashboard that takes the figures of a run."""

    def write(self, step: int, figures: Mapping[str, float]) -> None:
        """Writes the figures of one step; their names have a group (`train/reward`)."""

    def close(self, *, failed: bool) -> None:
        """Writes what is left."""


@dataclass(frozen=True, slots=True)
class WandbSettings:
    """A run of Weights & Biases. `wandb`'s own variables set its destination, its key and whether it is sent."""

    project: str
    config: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the run, as plain values."""


def open_boards(folder: Path, *, after: int, wandb: WandbSettings | None) -> list[Board]:
    """Opens the dashboards for the steps after `after` of the run in `folder`. Raises ConfigError if wandb is wanted
    and not installed, and FairboxError if it can't begin a run."""
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
    """Id of this folder's run at Weights & Biases, so that a resumed run goes on there as the same run."""
    if new or not path.exists():
        path.write_text(uuid.uuid4().hex[:16] + "\n", encoding="ascii")
    return path.read_text(encoding="ascii").strip()
