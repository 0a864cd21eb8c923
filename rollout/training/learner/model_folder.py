"""Writes a trained model as a folder in the layout of the Hugging Face hub.

Invariant: an exported folder is whole or not there.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, Protocol

import torch
from huggingface_hub import save_torch_state_dict
from safetensors import SafetensorError

from fairbox.errors import FairboxError

PART_BYTES = 4 << 30
"""Largest size of one file of weights."""
_TOKENIZER = ("tokenizer*", "*.jinja", "vocab*", "merges.txt", "special_tokens_map.json", "generation_config.json")
"""Patterns of the files that a model folder holds beside its configuration and weights."""


class WritableModel(Protocol):
    """A trained model, wherever it is."""

    def write(self, folder: Path, *, for_engine: bool = False) -> None:
        """Configuration and weights, without a tokenizer. Raises FairboxError.

        `for_engine`: in the type that the model computes in, `policy.dtype`, and not in that of its parameters. An
        engine in bfloat16 rounds to that itself, and half as much is written and read.
        """


def export_model(model: WritableModel, source: Path, target: Path) -> None:
    """Writes the trained model as a folder that `model` of a run and other programs take: what was learned put into the
    weights, with the tokenizer of `source`. It is whole or not there. Raises FairboxError."""
    beside = target.with_name(f".{target.name}.part")
    try:
        shutil.rmtree(beside, ignore_errors=True)
        model.write(beside)
        for path in {path for pattern in _TOKENIZER for path in source.glob(pattern) if path.is_file()}:
            shutil.copy(path, beside / path.name)
        shutil.rmtree(target, ignore_errors=True)
        beside.rename(target)
    except (OSError, FairboxError) as error:
        shutil.rmtree(beside, ignore_errors=True)
        raise FairboxError(f"{target}: the model can't be written: {error}") from None


def write_model(config: Any, tensors: dict[str, torch.Tensor], folder: Path) -> None:
    """Writes transformers' own `config`, and weights on the CPU. Raises FairboxError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        save_torch_state_dict(tensors, folder, max_shard_size=PART_BYTES)
        config.save_pretrained(folder)
    except (OSError, SafetensorError) as error:
        raise FairboxError(f"{folder}: the weights can't be written: {error}") from None
