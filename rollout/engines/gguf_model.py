"""Writes a model from a GGUF file as a plain model folder in float32.

The weights are those of the file, as transformers dequantizes them; quantization is lossy, so they are not those that
were quantized.
"""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig
from transformers.utils import logging

from fairbox.errors import FairboxError

__all__ = ["convert"]


def convert(source: Path, target: Path) -> None:
    """Writes model, tokenizer and chat template of `source` into the folder `target`."""
    logging.disable_progress_bar()
    tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
    read, found = AutoModelForCausalLM.from_pretrained(
        source.parent, gguf_file=source.name, dtype=torch.float32, output_loading_info=True
    )
    wrong = {
        kind: sorted(found[kind]) for kind in ("missing_keys", "unexpected_keys", "mismatched_keys") if found[kind]
    }
    if wrong:
        raise FairboxError(f"{source}: the weights don't fit the model: {wrong}")
    config = AutoConfig.from_pretrained(source.parent, gguf_file=source.name)
    config.architectures = [type(read).__name__]
    model = type(read)(config).to(torch.float32)  # what was read from GGUF counts as quantized, and can't be saved
    model.load_state_dict(read.state_dict())
    end = tokenizer.eos_token_id
    model.generation_config = GenerationConfig(eos_token_id=end, pad_token_id=end)
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)
