"""Tasks of trajectories: the prompt, and the data that rewards and tools need."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rollout.tokens.tokenizer import Message


@dataclass(frozen=True, slots=True)
class Task:
    """One thing to do, for one or more trajectories."""

    uid: str
    """The group that its trajectories form."""
    messages: tuple[Message, ...]
    """The prompt."""
    ground_truth: str
    data_source: str
    where: str
    """File and line that it comes from."""
    tools_kwargs: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Tool name -> options of its `create`."""
    row: Mapping[str, Any] = field(default_factory=dict)
    """The other columns of the data that it comes from, for reward functions. No tool and no prompt sees them."""
