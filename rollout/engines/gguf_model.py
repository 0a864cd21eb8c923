"""Writes a Llama model from a GGUF file as a plain model folder in float32.

The weights are those of the file, dequantized; quantization is lossy, so they are not those that were quantized. Only
the architecture `llama` is taken.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig
from transformers.utils import logging

from fairbox.errors import FairboxError

__all__ = ["convert"]


def convert(source: Path, target: Path) -> None:
    """Writes model, tokenizer and chat template of `source` into the folder `target`."""
    logging.disable_progress_bar()
    config = AutoConfig.from_pretrained(source.parent, gguf_file=source.name)
    if config.model_type != "llama":
        raise FairboxError(f"{source}: is a {config.model_type} model; only llama is converted")
    config.architectures = ["LlamaForCausalLM"]
    tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    missing, unexpected = model.load_state_dict(_weights(source, config), strict=False)
    if unexpected or set(missing) - {"lm_head.weight"} or (missing and not config.tie_word_embeddings):
        raise FairboxError(f"{source}: the weights don't fit the model: missing {missing}, unexpected {unexpected}")
    model.tie_weights()
    end = tokenizer.eos_token_id
    model.generation_config = GenerationConfig(eos_token_id=end, pad_token_id=end)
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)


def _weights(source: Path, config: Any) -> dict[str, torch.Tensor]:
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(source).tensors}
    weights = {}
    for name, module in _names(config.num_hidden_layers).items():
        tensor = tensors.get(f"{name}.weight")
        if tensor is None:  # a tied output layer is not stored
            continue
        values = np.array(gguf.quants.dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
        count = heads.get(module.rpartition(".")[2])
        weights[f"{module}.weight"] = torch.from_numpy(values if count is None else _unpermute(values, count))
    return weights


def _names(layers: int) -> dict[str, str]:
    """Name in the file -> name of the module."""
    table = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, layers)
    modules = ["model.embed_tokens", "model.norm", "lm_head"]
    parts = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"]
    parts += ["mlp.gate_proj", "mlp.up_proj", "mlp.down_proj", "input_layernorm", "post_attention_layernorm"]
    modules += [f"model.layers.{layer}.{part}" for layer in range(layers) for part in parts]
    return {str(table.get_name(module)): module for module in modules}


def _unpermute(values: np.ndarray[Any, np.dtype[np.float32]], heads: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Undoes GGUF's order of rotary pairs for llama: adjacent there, half a head apart in transformers."""
    rows, columns = values.shape
    return values.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns).copy()
