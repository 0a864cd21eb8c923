"""The processes that train one model together, as a learner sees them: itself alone, or the ranks of a process group.

Invariant: every peer calls the same methods in the same order; what they return is the same everywhere, bit for bit,
except from `whole`, which returns a tensor to the first peer alone. So decisions based on it are equal everywhere.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor


class Peers:
    """One process, which is alone; `Ranks` are several."""

    rank = 0
    """Rank of this process, from 0."""
    count = 1

    def add_up(self, values: torch.Tensor) -> None:
        """Puts the sum over all peers into `values`, a tensor on the CPU."""

    def all_of(self, value: Any) -> list[Any]:
        """Values of all peers, by rank. Meant for small values."""
        return [value]

    def whole(self, value: torch.Tensor) -> torch.Tensor | None:
        """A tensor that may be split over the peers, in one piece, at the first of them; None at the others."""
        return value


ALONE = Peers()


class Ranks(Peers):
    """The default process group, which must be able to carry tensors of the CPU."""

    def __init__(self) -> None:
        self.rank = dist.get_rank()
        self.count = dist.get_world_size()

    def add_up(self, values: torch.Tensor) -> None:
        dist.all_reduce(values)

    def all_of(self, value: Any) -> list[Any]:
        found: list[Any] = [None] * self.count
        dist.all_gather_object(found, value)
        return found

    def whole(self, value: torch.Tensor) -> torch.Tensor | None:
        full = value.full_tensor() if isinstance(value, DTensor) else value
        return full.clone() if self.rank == 0 else None  # else it may be a view of what was padded to be gathered
