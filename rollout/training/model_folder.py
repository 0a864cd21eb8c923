"""Writes a trained model as a folder in the layout of the Hugging Face hub.

Invariants: weights are written a part at a time, so that of a model that is split over processes, or has adapters,
`PART_BYTES` are whole in memory and not all of it; tied weights are written once; an exported folder is whole or not
there.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from fairbox.errors import FairboxError

__all__ = ["PART_BYTES", "WritableModel", "export_model", "write_model"]

PART_BYTES = 4 << 30
"""Of one file; Hugging Face's own tools take like sizes."""
_TOKENIZER = ("tokenizer*", "*.jinja", "vocab*", "merges.txt", "special_tokens_map.json", "generation_config.json")
"""What a model folder holds beside its configuration and weights."""


class WritableModel(Protocol):
    """A trained model, wherever it is."""

    def write(self, folder: Path) -> None:
        """Configuration and weights, without a tokenizer. Raises FairboxError."""


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


def write_model(
    config: Any, tensors: Iterator[tuple[str, torch.Tensor]], folder: Path, *, part_bytes: int = PART_BYTES
) -> None:
    """`config` is transformers' own; a tensor may be let go of when the next one is taken. Raises FairboxError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        parts: list[list[str]] = []
        part: dict[str, torch.Tensor] = {}
        size = total = 0
        for name, value in tensors:
            if part and size + value.nbytes > part_bytes:
                parts.append(_write_part(folder, len(parts), part))
                size, part = 0, {}
            part[name] = value.contiguous().cpu()
            size, total = size + value.nbytes, total + value.nbytes
        parts.append(_write_part(folder, len(parts), part))
        _name_parts(folder, parts, total)
        config.save_pretrained(folder)
    except (OSError, SafetensorError) as error:
        raise FairboxError(f"{folder}: the weights can't be written: {error}") from None


def _write_part(folder: Path, number: int, part: dict[str, torch.Tensor]) -> list[str]:
    save_file(part, _part(folder, number), metadata={"format": "pt"})
    return list(part)


def _name_parts(folder: Path, parts: list[list[str]], total: int) -> None:
    """The names that loaders look for: how many there are is known at the end."""
    if len(parts) == 1:
        _part(folder, 0).rename(folder / "model.safetensors")
        return
    places: dict[str, str] = {}
    for number, names in enumerate(parts):
        file = f"model-{number + 1:05d}-of-{len(parts):05d}.safetensors"
        _part(folder, number).rename(folder / file)
        places |= dict.fromkeys(names, file)
    index = {"metadata": {"total_size": total}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=1) + "\n", encoding="utf-8")


def _part(folder: Path, number: int) -> Path:
    return folder / f"model-{number:05d}.part"
